// What a person can order for an upgrade that is under way: promote, pause, resume, approve, abort.
import { at, post } from "../../api";
import { deploys } from "../../session";
import { attempt, Button, confirm } from "../../ui";
import type { Order, Rollout, SliceStatus } from "./types";
import { versionOf } from "./words";

const WORDS: Record<Order, [label: string, done: string]> = {
  promote: ["Promote", "is promoted"],
  pause: ["Pause", "is paused"],
  resume: ["Resume", "goes on"],
  approve: ["Approve", "is approved"],
  abort: ["Abort", "is taken back"],
};

export function Orders({ blueprint, slice }: { blueprint: string; slice: SliceStatus }) {
  const going = slice.rollout;
  if (!going || (!going.actions.length && !going.ordered && !going.refused)) return null;
  return (
    <div class="stack">
      {(going.paused || going.awaits_approval) && (
        <p class="note warn" role="status">
          {going.paused ? `Paused by ${going.ordered_by}.` : `${going.why}.`}
        </p>
      )}
      {going.refused && (
        <p class="note bad" role="status">
          {going.refused}
        </p>
      )}
      {going.ordered && <p class="soft">{WORDS[going.ordered][0]} was ordered by {going.ordered_by}; the leader carries it out.</p>}
      {deploys.value && going.actions.length > 0 && (
        <div class="row" role="group" aria-label={`Orders for ${slice.base}`}>
          {going.actions.map((one) => (
            <Button key={one} small danger={one === "abort"} onClick={() => order(blueprint, slice, going, one)} label={`${WORDS[one][0]} ${slice.base}`}>
              {WORDS[one][0]}
            </Button>
          ))}
          {going.refused && going.actions.includes("promote") && (
            <Button small danger onClick={() => order(blueprint, slice, going, "promote", true)} label={`Promote ${slice.base} all the same`}>
              Promote all the same
            </Button>
          )}
        </div>
      )}
    </div>
  );
}

async function order(blueprint: string, slice: SliceStatus, going: Rollout, what: Order, force = false): Promise<void> {
  const version = versionOf(slice.artifact);
  if (what === "abort") {
    const text = `${version} receives no new calls and is removed. ${versionOf(slice.previous)} serves. The blueprint stays as it is: applying it again tries again.`;
    if (!(await confirm({ title: `Take ${version} back`, text, action: "Abort", danger: true }))) return;
  }
  if (force && !(await confirm({ title: `Promote ${version} all the same`, text: going.refused, action: "Promote", danger: true }))) return;
  // What is ordered is what the page shows: an upgrade that has gone on since is not taken a stage too far.
  const body = { slice: slice.base, seen: { [slice.base]: going.changed_at }, ...(what === "promote" ? { force } : {}) };
  await attempt(() => post(at`/v1/blueprints/${blueprint}/${what}`, body), `${slice.base} ${WORDS[what][1]}.`);
}
