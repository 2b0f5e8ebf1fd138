// Why a machine is where it is, node by node, and what led there.
import { useEffect, useState } from "preact/hooks";
import { get, withQuery } from "../../api";
import type { TracePage, WhyView } from "../../api-types";
import { ObjectLink, named, thing } from "../../objects";
import { to } from "../../route";
import { type Branch, Busy, Clock, Empty, Failure, State, Table, Tree } from "../../ui";
import type { One } from "./detail";
import type { Trace, Why } from "./types";

export function PlacementTab({ vm, path }: One) {
  const [why, setWhy] = useState<Why | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const load = (): Promise<void> => get<Why>(`${path}/why`).then((found) => { setWhy(found); setFailure(null); }, setFailure);
  useEffect(() => {
    void load();
  }, [path, vm.node, vm.phase]);
  if (failure) return <Failure error={failure} again={load} />;
  if (!why) return <Busy>Loading placement</Busy>;
  return (
    <div class="stack">
      <section class="panel" aria-labelledby="vms-decided">
        <h2 id="vms-decided">Decision</h2>
        {why.decided.length === 0 ? (
          <p class="soft">Nothing was decided yet, or it is no longer kept.</p>
        ) : (
          <ul>
            {why.decided.map((reason, i) => (
              <li key={i}>
                <strong>{reason.subject}</strong>: {reason.why}
              </li>
            ))}
          </ul>
        )}
      </section>
      <section aria-labelledby="vms-verdicts">
        <h2 id="vms-verdicts">Nodes now</h2>
        {why.nodes.length === 0 ? (
          <Empty title="There is no node">
            <p>Machines need one: start an agent, or hostler up.</p>
          </Empty>
        ) : (
          <Table caption="Verdicts on nodes" head={["Node", "Fits", "Score", "Reasons"]}>
            {why.nodes.map((one) => (
              <tr key={one.node}>
                <th scope="row">
                  <ObjectLink of={named("node", [one.node])}>{one.node}</ObjectLink> {one.node === why.node && <span class="tag">it is here</span>}
                </th>
                <td>{one.fits ? <State look="good">fits</State> : <State look="idle">does not fit</State>}</td>
                <td class="number">{one.fits ? one.score.toFixed(1) : ""}</td>
                <td>{one.reasons.join("; ")}</td>
              </tr>
            ))}
          </Table>
        )}
      </section>
    </div>
  );
}

export function HistoryTab({ vm }: One) {
  const [told, setTold] = useState<{ why: WhyView; traces: Trace[] } | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const object = `vm/${vm.org}/${vm.project}/${vm.id}`;
  const load = async (): Promise<void> => {
    try {
      const [why, page] = await Promise.all([get<WhyView>(withQuery("/v1/why", { object })), get<TracePage>(withQuery("/v1/decisions", { object, limit: 100 }))]);
      setTold({ why, traces: [...page.items, ...page.before] });
      setFailure(null);
    } catch (error) {
      setFailure(error);
    }
  };
  useEffect(() => {
    void load();
  }, [object, vm.phase, vm.generation, vm.node]);
  if (failure) return <Failure error={failure} again={load} />;
  if (!told) return <Busy>Asking what happened</Busy>;
  return (
    <div class="stack">
      <section class="panel" aria-labelledby="vms-led">
        <h2 id="vms-led">Causes</h2>
        <p>It {told.why.state || "exists"}{told.why.since ? <> since <Clock at={told.why.since} /></> : ""}.</p>
        {told.why.steps.length ? <Tree label="What led to it" branches={told.why.steps.map(branch)} /> : <p class="soft">Nothing of it is kept.</p>}
      </section>
      <section class="panel" aria-labelledby="vms-all">
        <h2 id="vms-all">All decisions</h2>
        {told.traces.length ? <Tree label="What happened" branches={grown(told.traces)} /> : <p class="soft">Nothing is kept.</p>}
        <p>
          <a href={to("events", [], { view: "why", object })}>More in Events</a>
        </p>
      </section>
    </div>
  );
}

function branch(step: Trace): Branch {
  return {
    key: step.id,
    content: (
      <>
        {step.at !== null && (
          <span class="soft small">
            <Clock at={step.at} />{" "}
          </span>
        )}
        <ObjectLink of={thing(step.subject)} />: {step.why || step.what} <span class="soft">({step.actor})</span>
      </>
    ),
  };
}

/** Causes above what they led to; the oldest first. */
function grown(traces: Trace[]): Branch[] {
  const branches = new Map(traces.map((one) => [one.id, { ...branch(one), children: [] as Branch[] }]));
  const roots: Branch[] = [];
  for (const one of [...traces].reverse()) {
    const own = branches.get(one.id);
    const above = one.parent ? branches.get(one.parent) : undefined;
    if (own) (above?.children ?? roots).push(own);
  }
  return roots;
}
