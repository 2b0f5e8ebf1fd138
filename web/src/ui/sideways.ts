/**
 * Scroll a box sideways until one of its elements is visible, and `peek` pixels next to it. By hand: scrollIntoView would move the page as
 * well, and in newer browsers the next Tab would begin there, past the link that skips to the page.
 */
export function bring(box: HTMLElement, one: HTMLElement, peek = 0): void {
  const [seen, its] = [box.getBoundingClientRect(), one.getBoundingClientRect()];
  if (its.left - peek < seen.left) box.scrollLeft -= seen.left - its.left + peek;
  else if (its.right + peek > seen.right) box.scrollLeft += its.right + peek - seen.right;
}
