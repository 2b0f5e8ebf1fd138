// A table of any length: only the rows that can be seen are in the page.
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

export interface Column<T> {
  title: string;
  /** A track of a CSS grid: "minmax(10rem, 2fr)". */
  width: string;
  cell: (row: T) => ComponentChildren;
}

interface VirtualTableProps<T> {
  label: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
  keyOf: (row: T) => string;
  /** Where Enter and a click on a row lead. */
  onOpen?: (row: T) => void;
  height?: string;
  rowHeight?: number;
}

const SPARE = 8;
/** Browsers lay nothing out beyond some 16 million pixels; longer lists are scrolled in proportion. */
const TALLEST = 8_000_000;

/** "minmax(10rem, 2fr)" → "10rem". */
const leastOf = (width: string): string => /^minmax\(([^,]+),/.exec(width)?.[1] ?? width;

export function VirtualTable<T>({ label, rows, columns, keyOf, onOpen, height = "min(70vh, 48rem)", rowHeight = 40 }: VirtualTableProps<T>) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [seen, setSeen] = useState(800);
  const [active, setActive] = useState(0);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const watch = new ResizeObserver(() => setSeen(element.clientHeight));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  const whole = rows.length * rowHeight;
  const tall = Math.min(whole, TALLEST);
  const shown = Math.ceil(seen / rowHeight) + SPARE;
  // Where the box is scrolled to, in pixels of a list of full height.
  const place = whole > TALLEST ? (top / Math.max(1, tall - seen)) * (whole - seen) : top;
  const first = Math.max(0, Math.min(Math.floor(place / rowHeight) - SPARE / 2, rows.length - shown));
  const shift = top - place;
  // As long as no other row comes into sight there is nothing to draw.
  const rowOf = (scrolled: number): number => (whole > TALLEST ? scrolled : scrolled - (scrolled % rowHeight));
  const show = (index: number): void => {
    const element = box.current;
    if (!element) return;
    const wanted = index * rowHeight;
    const from = whole > TALLEST ? place : element.scrollTop;
    const room = seen - rowHeight * 2;
    const target = wanted < from ? wanted : wanted > from + room ? wanted - room : from;
    if (target !== from) element.scrollTop = whole > TALLEST ? (target / (whole - seen)) * (tall - seen) : target;
  };
  const key = (event: KeyboardEvent): void => {
    const page = Math.max(1, Math.floor(seen / rowHeight) - 1);
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length };
    const step = steps[event.key];
    const row = rows[active];
    if (event.key === "Enter" && event.target === box.current && row !== undefined) onOpen?.(row);
    else if (step !== undefined) {
      event.preventDefault();
      const next = Math.max(0, Math.min(rows.length - 1, active + step));
      setActive(next);
      show(next);
    }
  };
  const template = columns.map((column) => column.width).join(" ");
  // Head and rows are grids of their own, and agree only if all have the same room.
  const minWidth = `calc(${columns.map((column) => leastOf(column.width)).join(" + ")})`;
  const visible = rows.slice(first, first + shown);
  return (
    <div
      class="virtual"
      ref={box}
      role="table"
      aria-label={label}
      aria-rowcount={rows.length + 1}
      tabIndex={0}
      style={{ height: `min(${height}, ${rows.length * rowHeight + rowHeight + 4}px)` }}
      onScroll={(event) => setTop(rowOf(event.currentTarget.scrollTop))}
      onKeyDown={key}
    >
      <div role="rowgroup" class="virtual-head" style={{ minWidth }}>
        <div role="row" aria-rowindex={1} style={{ gridTemplateColumns: template, height: `${rowHeight}px` }}>
          {columns.map((column) => (
            <span role="columnheader" key={column.title}>
              {column.title}
            </span>
          ))}
        </div>
      </div>
      <div role="rowgroup" style={{ position: "relative", height: `${tall}px`, minWidth }}>
        {visible.map((row, i) => (
          <div
            role="row"
            class="virtual-row"
            key={keyOf(row)}
            aria-rowindex={first + i + 2}
            data-active={first + i === active || undefined}
            style={{ gridTemplateColumns: template, height: `${rowHeight}px`, top: `${(first + i) * rowHeight + shift}px` }}
            onClick={() => {
              setActive(first + i);
              onOpen?.(row);
            }}
          >
            {columns.map((column) => (
              <span role="cell" key={column.title}>
                {column.cell(row)}
              </span>
            ))}
          </div>
        ))}
      </div>
    </div>
  );
}
