// Short news that go away: a thing was done, or could not be. What went wrong stays until it is closed.
import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";

interface Item {
  id: number;
  text: string;
  look: "plain" | "bad";
}

const items = signal<Item[]>([]);
let last = 0;

export function toast(text: string, look: Item["look"] = "plain"): void {
  last += 1;
  const item = { id: last, text, look };
  items.value = [...items.value.slice(-3), item];
  if (look === "plain") setTimeout(() => drop(item.id), 5000);
}

function drop(id: number): void {
  items.value = items.value.filter((item) => item.id !== id);
}

export function Toasts() {
  const box = useRef<HTMLDivElement>(null);
  const shown = items.value;
  useLayoutEffect(() => {
    const element = box.current;
    // What was shown last is on top: so news are not behind a dialog that was opened since.
    if (element?.matches(":popover-open") && document.querySelector("dialog[open]")) element.hidePopover();
    if (!element?.matches(":popover-open")) element?.showPopover();
  }, [shown]);
  return (
    <div class="toasts" role="status" aria-live="polite" popover="manual" ref={box}>
      {shown.map(({ id, text, look }) => (
        <div class={`toast ${look}`} key={id}>
          <span>{text}</span>
          <button type="button" aria-label="Close this message" onClick={() => drop(id)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}
