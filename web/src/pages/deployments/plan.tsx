// What an apply would do, as a diff: + what comes, ~ what changes, − what goes.
import { count, Failure, sentence } from "../../ui";
import { Problem } from "../../api";
import type { BlueprintPlan, SlicePlan, SliceSpec } from "./types";
import { asToml, diff, versionOf } from "./words";

const SIGNS: Record<SlicePlan["what"], readonly [sign: string, word: string, look: string]> = {
  add: ["+", "new", "plus"],
  upgrade: ["~", "another version", "change"],
  settings: ["~", "other settings", "change"],
  scale: ["~", "another number", "change"],
  change: ["~", "changed, its instances stay", "change"],
  remove: ["−", "goes", "minus"],
  keep: ["=", "stays as it is", "same"],
};

/** `rolls`: roll regardless of the strategy, as a rollback does. */
export function Plan({ plan, rolls }: { plan: BlueprintPlan; rolls?: boolean }) {
  const sum = (field: "to_load" | "to_unload" | "to_move" | "waiting"): number => plan.slices.reduce((total, one) => total + one[field], 0);
  return (
    <section class="stack" aria-label="Plan">
      {plan.refused.length > 0 && (
        <div class="note bad" role="alert">
          <p>
            <strong>It cannot be applied as it is.</strong>
          </p>
          <ul>
            {plan.refused.map((one) => (
              <li key={one}>{one}</li>
            ))}
          </ul>
        </div>
      )}
      <p>
        {plan.changes
          ? `${count(sum("to_load"), "instance")} would be loaded, ${sum("to_unload")} unloaded, ${sum("to_move")} of them moved to another node.`
          : "Nothing would change: the blueprint says this already."}
        {sum("waiting") > 0 && ` For ${count(sum("waiting"), "instance")} there is no node now.`}
      </p>
      <ul class="deployments-plan">
        {plan.slices.map((one) => (
          <OfSlice key={one.base} plan={one} how={rolls && one.what === "upgrade" ? "rolling, regardless of its strategy" : one.how} />
        ))}
      </ul>
      {plan.notes.map((note) => (
        <p class="soft small" key={note}>
          {note}
        </p>
      ))}
    </section>
  );
}

function OfSlice({ plan, how }: { plan: SlicePlan; how: string }) {
  const [sign, word, look] = SIGNS[plan.what];
  return (
    <li class={`deployments-plan-slice ${look}`}>
      <div class="row">
        <span class="deployments-sign" aria-hidden="true">
          {sign}
        </span>
        <strong>{plan.base}</strong>
        <span>{word}</span>
        <span class="mono">
          {plan.previous && plan.artifact && plan.previous !== plan.artifact
            ? `${versionOf(plan.previous)} → ${versionOf(plan.artifact)}`
            : versionOf(plan.artifact || plan.previous)}
        </span>
        <span>
          {plan.what !== "add" && plan.what !== "remove" && plan.previous_instances !== plan.instances
            ? `${plan.previous_instances} → ${count(plan.instances, "instance")}`
            : count(plan.instances || plan.previous_instances, "instance")}
        </span>
      </div>
      {how && <p class="soft">{how}</p>}
      <ul class="deployments-moves">
        {plan.load.map((one) => (
          <Move key={`+${one.node}`} sign="+" look="plus" text={`load ${one.instances} on ${one.node}`} why={one.why} />
        ))}
        <Rest more={plan.to_load - sumOf(plan.load)} sign="+" word="load" />
        {plan.unload.map((one) => (
          <Move key={`-${one.node}`} sign="−" look="minus" text={`unload ${one.instances} on ${one.node}`} why={one.why} />
        ))}
        <Rest more={plan.to_unload - sumOf(plan.unload)} sign="−" word="unload" />
        {plan.move.map((one) => (
          <Move key={`${one.source}>${one.target}`} sign="→" look="change" text={`of these, ${one.instances} from ${one.source} to ${one.target}`} why={one.why} />
        ))}
        {plan.waiting > 0 && <Move sign="?" look="change" text={`${count(plan.waiting, "instance")} without a node`} why={plan.passed_over.map((one) => `${one.subject}: ${one.why}`).join("; ")} />}
      </ul>
    </li>
  );
}

const sumOf = (some: readonly { instances: number }[]): number => some.reduce((total, one) => total + one.instances, 0);

function Rest({ more, sign, word }: { more: number; sign: string; word: string }) {
  return more > 0 ? <Move sign={sign} look="same" text={`${word} ${more} more`} why="" /> : null;
}

function Move({ sign, look, text, why }: { sign: string; look: string; text: string; why: string }) {
  return (
    <li class={look}>
      <span class="deployments-sign" aria-hidden="true">
        {sign}
      </span>
      <span>
        {text}
        {why && <span class="soft small"> · {why}</span>}
      </span>
    </li>
  );
}

/** Two blueprints, line by line. */
export function Difference({ before, after, label }: { before: readonly SliceSpec[]; after: readonly SliceSpec[]; label: string }) {
  const lines = diff(asToml(before), asToml(after));
  if (lines.every(([sign]) => sign === " ")) return <p class="soft">They say the same.</p>;
  return (
    <pre class="deployments-diff" tabIndex={0} aria-label={label}>
      {lines.map(([sign, text], i) => (
        <span key={i} class={sign === "+" ? "plus" : sign === "−" ? "minus" : "same"}>
          {`${sign} ${text}\n`}
        </span>
      ))}
    </pre>
  );
}

/** What was refused: several faults stand on lines of their own, each with its place. */
export function Refused({ error }: { error: unknown }) {
  if (!(error instanceof Problem) || !error.detail.includes("\n")) return <Failure error={error} />;
  return (
    <div class="note bad" role="alert">
      <ul>
        {error.detail.split("\n").map((one) => (
          <li key={one}>{one}</li>
        ))}
      </ul>
      {error.next && <p>{sentence(error.next)}</p>}
    </div>
  );
}
