// What machines went through lately, with times: kept from the moment that this page is opened.
import { signal } from "@preact/signals";
import { type Change, on } from "../../live";

export interface Step {
  name: string;
  /** Seconds since 1970. */
  at: number;
}

const MOST = 300;
const known = new Map<string, Step[]>();
/** Grows with each step. */
export const stepped = signal(0);

interface Reported {
  state?: string;
  readiness?: { step: string; since: number } | null;
}

on(["vm", "handle"], (changes) => {
  for (const change of changes) take(change);
});

function take({ kind, type, subject, record, heardAt }: Change): void {
  if (type === "delete") {
    if (kind === "vm") known.delete(subject);
    return;
  }
  if (kind === "vm") {
    if (!known.has(subject)) note(subject, []);
    return;
  }
  const { state, readiness } = record as Reported;
  const name = state === "running" && readiness ? readiness.step : state;
  if (!name) return;
  const steps = known.get(subject) ?? [];
  if (steps.at(-1)?.name === name) return;
  note(subject, [...steps, { name, at: heardAt / 1000 }].slice(-40));
}

function note(subject: string, steps: Step[]): void {
  known.set(subject, steps);
  const oldest = known.keys().next();
  if (known.size > MOST && !oldest.done) known.delete(oldest.value);
  stepped.value += 1;
}

export const stepsOf = (subject: string): Step[] => known.get(subject) ?? [];
