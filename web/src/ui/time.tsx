// Times as people say them. Instants are seconds since 1970, as in the API.
import { clock } from "../clock";

/** 95 → "1 min 35 s"; the two largest units. */
export function span(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const units: [string, number][] = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => whole >= size);
  if (first < 0) return "0 s";
  let rest = whole;
  const pieces: string[] = [];
  for (const [name, size] of units.slice(first, first + 2)) {
    const n = Math.floor(rest / size);
    rest -= n * size;
    if (n) pieces.push(`${n} ${name}`);
  }
  return pieces.join(" ");
}

const exactly = (at: number): string => new Date(at * 1000).toLocaleString();

/** "3 min ago", kept up to date; `since`: "for 3 min". */
export function Ago({ at, since }: { at: number; since?: boolean }) {
  const old = clock.value - at;
  const text = since ? `for ${old < 1 ? "a moment" : span(old)}` : old < 1 ? "just now" : `${span(old)} ago`;
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={exactly(at)}>
      {text}
    </time>
  );
}

/** How long until then, counting down. */
export function Left({ at, over = "over" }: { at: number; over?: string }) {
  const left = at - clock.value;
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={exactly(at)} class="number">
      {left > 0 ? span(left) : over}
    </time>
  );
}

/** The very instant. */
export function Clock({ at }: { at: number }) {
  return <time dateTime={new Date(at * 1000).toISOString()}>{exactly(at)}</time>;
}
