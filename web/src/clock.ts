// What time it is by the server, whose instants the page shows: the clock of a browser may be hours off.
import { signal } from "@preact/signals";

/** An answer says whole seconds only; by so many more than it proves a clock may be wrong. */
const SLACK = 1;

const here = (): number => Date.now() / 1000;
/** When it was `there` by the server it was `here` by this browser; `rate` seconds pass there in one of here. */
let known = { here: 0, there: 0, rate: 1 };

/** An instant of this browser's, in milliseconds, as the server would tell it. */
export const fromHere = (ms: number): number => known.there + (ms / 1000 - known.here) * known.rate;

/** Seconds since 1970, by the server. */
export const now = (): number => fromHere(Date.now());

/** The same, once a second. */
export const clock = signal(now());
setInterval(() => (clock.value = now()), 1000);

/**
 * Ask, and look at the answer's `Date`. It was written between the question and the answer, and is cut to a second: so
 * it is now, by the server, something between two bounds. What is known changes only if it is far outside of them, so
 * that a slow answer changes nothing. The time of a simulation may be paused or run: its answers say so, too.
 */
export async function fetchTimed(path: string, asked: RequestInit): Promise<Response> {
  const begun = here();
  const answer = await fetch(path, asked);
  const said = Date.parse(answer.headers.get("Date") ?? "") / 1000;
  const rate = Number(answer.headers.get("Hostler-Rate") ?? 1);
  const [at, by] = [here(), now()];
  const [least, most] = [said, said + 1 + (at - begun) * rate];
  if (by < least - SLACK || by > most + SLACK) known = { here: at, there: (least + most) / 2, rate };
  else if (rate !== known.rate) known = { here: at, there: by, rate };
  else return answer;
  clock.value = now();
  return answer;
}
