"""How quick the page is, as a ratio to known work that the same browser does at the same time.

A frame of the page is compared with a frame in which a script turns a loop `TURNS` times. Frames of both kinds take
turns, so what else runs on the machine slows both down alike: the ratio is measured once, and holds or does not.
"""

from __future__ import annotations

from playwright.async_api import Page

TURNS = 25_000_000
"""Turns of the loop in a frame of comparison: 25 milliseconds on a quiet machine, so 30 of them come a second."""
SPIN = """(turns) => {
  let left = 1;
  for (let turn = 0; turn < turns; turn += 1) left = (Math.imul(left, 1664525) + 1013904223) | 0;
  return left;
}"""
FRAMES = """([selector, by, turns]) => new Promise((done) => {
  const spin = SPIN;
  const box = document.querySelector(selector) ?? document.scrollingElement;
  const page = [], known = [];
  let frame = 0, last = 0;
  const step = (now) => {
    // Twelve frames of the page, six of known work. What ended now began in the frame before; what may be of both kinds
    // counts for none.
    const turn = frame % 18;
    if (turn >= 3 && turn <= 12) page.push(now - last);
    else if (turn >= 14 || (turn === 0 && frame)) known.push(now - last);
    last = now;
    if (frame === 18 * 4) {
      done({ page, known, top: box.scrollTop, seen: box.clientHeight });
      return;
    }
    if (turn >= 12) window.spun = spin(turns);
    else if (by) box.scrollTop += by;
    else box.dispatchEvent(new Event("scroll"));
    frame += 1;
    requestAnimationFrame(step);
  };
  for (let warm = 0; warm < 3; warm += 1) window.spun = spin(turns / 10);
  box.scrollTop = 0;
  requestAnimationFrame(step);
})""".replace("SPIN", SPIN)


async def check_frames(page: Page, selector: str, by: int = 0) -> None:
    """While a box is scrolled by so many pixels with each frame (0: it is drawn anew), frames come as quickly as with
    the known work at least: on a quiet machine, 30 a second."""
    told = await page.evaluate(FRAMES, [selector, by, TURNS])
    assert not by or told["top"] > told["seen"], f"{selector} did not scroll: {told['top']} of {told['seen']} pixels"
    ours, known = (sum(told[kind]) / len(told[kind]) for kind in ("page", "known"))
    print(f"{selector}, {by} pixels: {ours:.1f} ms a frame; with the known work {known:.1f} ms")
    assert ours <= known, f"{selector}: {ours:.1f} ms a frame, with the known work {known:.1f} ms: {told}"
