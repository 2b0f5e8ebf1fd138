// The lines of a rollout. uPlot draws them, and is loaded only where there is something to draw.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { theme } from "../../theme";

export interface Line {
  label: string;
  values: (number | null)[];
  /** A variable of the theme. */
  colour: "--idle" | "--accent" | "--bad";
  dash?: number[];
  fill?: boolean;
}

interface ChartProps {
  title: string;
  unit: string;
  x: number[];
  lines: Line[];
  /** Instants that are marked. */
  marks: number[];
  /** The scale reaches at least so far. */
  least: number;
  most?: number;
}

const HEIGHT = 150;

export default function Chart({ title, unit, x, lines, marks, least, most }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const marked = useRef(marks);
  marked.current = marks;
  const top = useRef(least);
  top.current = least;
  const scheme = useScheme();
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const colour = (name: string): string => resolved(element, name);
    const text = colour("--soft");
    const grid = { stroke: colour("--line"), width: 1 };
    const font = "12px system-ui, sans-serif";
    const made = new uPlot(
      {
        width: element.clientWidth || 320,
        height: HEIGHT,
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, points: { show: false } },
        scales: { x: { time: true }, y: { range: (_, __, max) => [0, most ?? Math.max(top.current, max ?? 0) * 1.1] } },
        axes: [
          { stroke: text, grid, ticks: grid, font, size: 32, values: (_, splits) => splits.map(clock) },
          { stroke: text, grid, ticks: grid, font, size: 52, values: (_, splits) => splits.map((value) => String(Number(value.toFixed(2)))) },
        ],
        series: [
          {},
          ...lines.map((line) => {
            const stroke = colour(line.colour);
            const fill = line.fill ? { fill: `color-mix(in srgb, ${stroke} 15%, transparent)` } : {};
            return { label: line.label, stroke, width: 2, points: { show: false }, spanGaps: false, ...fill, ...(line.dash ? { dash: line.dash } : {}) };
          }),
        ],
        hooks: { draw: [(self) => drawMarks(self, marked.current, text)] },
      },
      [x, ...lines.map((line) => line.values)],
      element,
    );
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      made.destroy();
    };
  }, [scheme, lines.length, lines.map((line) => line.label).join()]);
  useEffect(() => plot.current?.setData([x, ...lines.map((line) => line.values)]));
  return (
    <figure class="deployments-chart">
      <figcaption>
        {title}, in {unit}
      </figcaption>
      <div ref={box} role="img" aria-label={`${title}: ${lines.map((line) => `${line.label} ${spoken(line.values, unit)}`).join(", ")}`} />
    </figure>
  );
}

const clock = (at: number): string => new Date(at * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

function spoken(values: (number | null)[], unit: string): string {
  const last = values.findLast((value) => value !== null);
  return last === undefined || last === null ? "no calls" : `now ${Number(last.toFixed(2))} ${unit}`;
}

/** A variable of the theme as the browser sees it here: a canvas knows no variables. */
function resolved(element: HTMLElement, name: string): string {
  element.style.color = `var(${name})`;
  const found = getComputedStyle(element).color;
  element.style.color = "";
  return found;
}

function drawMarks(plot: uPlot, marks: number[], colour: string): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.setLineDash([2, 4]);
  for (const mark of marks) {
    const left = plot.valToPos(mark, "x", true);
    if (left < bbox.left || left > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

/** Dark or light; the lines are drawn again when it changes. */
function useScheme(): string {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const [dark, setDark] = useState(query.matches);
  useEffect(() => {
    const changed = (): void => setDark(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return theme.value === "system" ? String(dark) : theme.value;
}
