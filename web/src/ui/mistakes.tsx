// Mistakes in a text: each one leads to its line.
import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Button } from ".";

export interface Mistake {
  /** Which part of it, as a path; may be empty. */
  place: string;
  /** 0: of no line. */
  line: number;
  what: string;
}

/** Mark a line, so that it is seen where the mistake is. */
function showLine(area: HTMLTextAreaElement, line: number): void {
  const lines = area.value.split("\n");
  const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  area.focus();
  area.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
  area.scrollTop = (line - 3) * (area.scrollHeight / Math.max(1, lines.length));
}

/** It comes into view, and the keyboard to it, whenever there are others. */
export function Mistakes({ title, of, area, children }: { title: string; of: readonly Mistake[]; area: RefObject<HTMLTextAreaElement | null>; children?: ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    box.current?.focus({ preventScroll: true });
    box.current?.scrollIntoView({ block: "nearest" });
  }, [of]);
  return (
    <div class="note bad" role="alert" ref={box} tabIndex={-1}>
      <p>
        <strong>{title}</strong>
      </p>
      <ul class="mistakes">
        {of.map(({ place, line, what }) => (
          <li key={`${line} ${place} ${what}`}>
            {line > 0 && (
              <Button small onClick={() => area.current && showLine(area.current, line)} label={`Show line ${line}`}>
                line {line}
              </Button>
            )}{" "}
            {place && <code>{place}</code>} {what}
          </li>
        ))}
      </ul>
      {children}
    </div>
  );
}
