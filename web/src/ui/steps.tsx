// How far something is: what was done, what is done now, and what comes.
import type { ComponentChildren } from "preact";
import { type Look, State } from "./index";

export type StepState = "done" | "now" | "later";

export interface StepShown {
  name: string;
  state: StepState;
  /** Where it is another than that of its state: a step that failed. */
  look?: Look | undefined;
  /** Behind it: when that was. */
  note?: ComponentChildren;
}

const LOOKS: Record<StepState, Look> = { done: "good", now: "busy", later: "idle" };

/** `children`: further items at the end. */
export function Steps({ steps, label = "Steps", children }: { steps: readonly StepShown[]; label?: string; children?: ComponentChildren }) {
  return (
    <ol class="steps" aria-label={label}>
      {steps.map(({ name, state, look, note }, i) => (
        <li key={i} class={state} aria-current={state === "now" ? "step" : undefined}>
          <State look={look ?? LOOKS[state]}>
            <span>
              {name} <span class="soft small">({state})</span>
            </span>
          </State>
          {note && <span class="soft small">{note}</span>}
        </li>
      ))}
      {children}
    </ol>
  );
}
