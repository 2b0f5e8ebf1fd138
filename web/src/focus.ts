// What has the focus may go away: a button with what it has done, a list when one of it is opened. The focus would fall
// to the top of the document then, and users of a keyboard or screen reader would start over. It goes to the nearest heading.

const WAIT = 100;

/** What had the focus last, and, of the page proper, with everything around it. */
let last: Element | null = null;
let around: Element[] = [];
let due: ReturnType<typeof setTimeout> | undefined;

function remember(event: FocusEvent): void {
  if (!(event.target instanceof Element)) return;
  last = event.target;
  const main = last.closest("main");
  if (!main) return;
  around = [];
  for (let one: Element | null = last; one && one !== main; one = one.parentElement) around.push(one);
}

const headingIn = (box: Element | null | undefined): HTMLElement | null => box?.querySelector<HTMLElement>("h1, h2, h3") ?? null;

/** Where to go: into the dialog that is open, to the heading of the section, to that of the page. */
function heir(): HTMLElement | null {
  const dialog = [...document.querySelectorAll<HTMLElement>("dialog[open]")].at(-1);
  if (dialog) return headingIn(dialog) ?? dialog;
  const section = around.find((one) => one.isConnected && one.matches("section, form, [role='region']") && headingIn(one));
  return headingIn(section) ?? document.querySelector<HTMLElement>("main h1") ?? document.querySelector("main");
}

function restore(): void {
  due = undefined;
  const lost = last !== null && !last.isConnected && (document.activeElement === document.body || document.activeElement === null);
  const to = lost ? heir() : null;
  if (!to) return;
  if (!to.hasAttribute("tabindex")) to.tabIndex = -1;
  to.focus();
}

/** From now on. Pages that put the focus somewhere themselves have a moment to do so. */
export function keepFocus(): void {
  document.addEventListener("focusin", remember);
  new MutationObserver(() => {
    if (last && !last.isConnected) due ??= setTimeout(restore, WAIT);
  }).observe(document.body, { childList: true, subtree: true });
}
