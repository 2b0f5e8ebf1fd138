// One slice: what runs of it on which node, in which state and why, and where its methods can be called.
import { useEffect, useRef, useState } from "preact/hooks";
import { at, get, withQuery } from "../../api";
import { nodeLink, ObjectLink } from "../../objects";
import { route } from "../../route";
import { deploys, everywhere } from "../../session";
import { Ago, Busy, Button, Clock, count, Dialog, Failure, State, Table } from "../../ui";
import { Log } from "../../ui/log";
import { Orders } from "./orders";
import { Rollout } from "./rollout";
import type { Measured } from "./series";
import type { WhyView } from "../../why";
import type { EndpointView, SliceInstance, SliceStatus, SliceView } from "./types";
import { goingOn, instanceState, PHASE_LOOK, stateWord, versionOf } from "./words";

const NODES = 60;
const INSTANCES = 60;

interface SliceProps {
  blueprint: string;
  slice: SliceStatus;
  on: SliceView[] | null;
  endpoints: EndpointView[] | null;
  measured: Measured | null;
}

export function Slice({ blueprint, slice, on, endpoints, measured }: SliceProps) {
  const [why, setWhy] = useState<Opened | null>(null);
  const box = useRef<HTMLElement>(null);
  const asked = route.value.query.get("slice") === slice.base;
  useEffect(() => {
    if (asked) box.current?.scrollIntoView({ block: "start" });
  }, [asked]);
  return (
    <section class="panel stack" ref={box} aria-labelledby={`slice-${slice.base}`}>
      <div class="row apart">
        <h2 id={`slice-${slice.base}`} class="deployments-name">
          {slice.base}
        </h2>
        <span class="row">
          <State look={PHASE_LOOK[slice.phase]}>{slice.phase}</State>
          <span class="number">
            {Math.min(slice.ready, slice.wished)}/{slice.wished} ready
          </span>
          {everywhere.value && (
            <Button small onClick={() => setWhy({ base: slice.base })} label={`Why ${slice.base} is so`}>
              Why
            </Button>
          )}
        </span>
      </div>
      <dl class="facts">
        <dt>Version</dt>
        <dd class="mono">{slice.artifact || "none any more"}</dd>
        {goingOn(slice) && (
          <>
            <dt>Rollout</dt>
            <dd>{goingOn(slice)}</dd>
          </>
        )}
        {slice.needs.length > 0 && (
          <>
            <dt>Needs</dt>
            <dd>{slice.needs.join(", ")}</dd>
          </>
        )}
        <dt>Strategy</dt>
        <dd>
          {slice.strategy}
          {slice.since !== null && (
            <span class="soft">
              {" "}
              · changed <Ago at={slice.since} />
            </span>
          )}
        </dd>
      </dl>
      {slice.reasons.length > 0 && (
        <details class="note warn">
          <summary>Why some have no node</summary>
          <ul>
            {slice.reasons.map((one) => (
              <li key={one.subject}>
                {one.subject}: {one.why}
              </li>
            ))}
          </ul>
        </details>
      )}
      {slice.alerts.length > 0 && <Alerts slice={slice} />}
      <Orders blueprint={blueprint} slice={slice} />
      <Rollout slice={slice} measured={measured} />
      <Versions slice={slice} />
      {on && on.length > 0 && <Grid slice={slice} on={on} open={(node, artifact, one) => setWhy({ base: slice.base, node, artifact, one })} />}
      {!on && <Counts slice={slice} />}
      {on && !on.length && <p class="soft">Nothing of it is on a node yet.</p>}
      {endpoints && <Endpoints slice={slice} endpoints={endpoints} />}
      {why && <Why {...why} onClose={() => setWhy(null)} />}
    </section>
  );
}

function Alerts({ slice }: { slice: SliceStatus }) {
  return (
    <Table caption={`Alerts of ${slice.base}`} head={["Alert", "Threshold", "State", "Since"]}>
      {slice.alerts.map((one) => (
        <tr key={one.name}>
          <th scope="row">{one.name}</th>
          <td>
            {one.metric} {one.above !== null ? `above ${one.above}` : `below ${one.below}`} for {one.after} s
          </td>
          <td>
            <State look={one.firing ? "bad" : "good"}>{one.firing ? `firing at ${Number((one.value ?? 0).toPrecision(4))}` : "quiet"}</State>
          </td>
          <td>{one.since === null ? "never fired" : <Ago at={one.since} />}</td>
        </tr>
      ))}
    </Table>
  );
}

function Versions({ slice }: { slice: SliceStatus }) {
  if (slice.versions.length < 2 && !slice.versions.some((one) => one.failures || one.given_up)) return null;
  return (
    <div>
      <h3>Versions</h3>
      <Table caption={`Versions of ${slice.base}`} head={["Version", "Share of calls", "Ready", "States", "Failures"]}>
        {slice.versions.map((one) => (
          <tr key={one.artifact}>
            <th scope="row" class="mono">
              {versionOf(one.artifact)}
            </th>
            <td class="deployments-number">{one.weight === null ? "by instances" : `${one.weight} %`}</td>
            <td class="deployments-number">{one.ready}</td>
            <td>
              {Object.entries(one.states)
                .map(([state, n]) => `${n} ${stateWord(state as SliceInstance["state"])}`)
                .join(", ") || "none"}
            </td>
            <td class="deployments-why">
              {one.failures ? `${one.failures} in a row${one.given_up ? ", given up" : ""}${one.why ? `: ${one.why}` : ""}` : "none"}
            </td>
          </tr>
        ))}
      </Table>
    </div>
  );
}

/** Where a blueprint has so many slices that not all are looked at one by one. */
function Counts({ slice }: { slice: SliceStatus }) {
  const told = slice.versions.flatMap((one) => one.nodes.map((on) => `${on.node} ${on.ready}/${on.instances} of ${versionOf(one.artifact)}`));
  return <p class="soft">{told.slice(0, 20).join(", ") || "Nothing of it is on a node yet."}</p>;
}

interface GridProps {
  slice: SliceStatus;
  on: SliceView[];
  open: (node: string, artifact: string, one: SliceInstance) => void;
}

/** Nodes by versions, with a mark for each instance. */
function Grid({ slice, on, open }: GridProps) {
  const [most, setMost] = useState(NODES);
  const artifacts = [...new Set(on.map((view) => view.artifact))].sort((a, b) => Number(b === slice.artifact) - Number(a === slice.artifact) || a.localeCompare(b));
  const nodes = [...new Set(on.map((view) => view.node))].sort();
  return (
    <div>
      <h3>Instances by node</h3>
      <Table caption={`Instances of ${slice.base} by node`} head={["Node", ...artifacts.map(versionOf)]}>
        {nodes.slice(0, most).map((node) => (
          <tr key={node}>
            <th scope="row">
              <a href={nodeLink(node)}>{node}</a>
            </th>
            {artifacts.map((artifact) => (
              <td key={artifact}>
                <Instances view={on.find((view) => view.node === node && view.artifact === artifact)} open={open} />
              </td>
            ))}
          </tr>
        ))}
      </Table>
      {nodes.length > most && <Button onClick={() => setMost(most + 200)}>Show more of {count(nodes.length, "node")}</Button>}
    </div>
  );
}

function Instances({ view, open }: { view: SliceView | undefined; open: GridProps["open"] }) {
  if (!view) return <span class="soft">–</span>;
  return (
    <span class="deployments-instances">
      {view.instances.slice(0, INSTANCES).map((one) => {
        const [look, word] = instanceState(one);
        return (
          <button
            key={one.instance}
            type="button"
            class={`deployments-instance ${look}`}
            onClick={() => open(view.node, view.artifact, one)}
            aria-label={`#${one.instance} ${word}: instance of ${versionOf(view.artifact)} on ${view.node}`}
          >
            <State look={look}>
              #{one.instance} {word}
            </State>
          </button>
        );
      })}
      {view.instances.length > INSTANCES && <span class="soft">and {view.instances.length - INSTANCES} more</span>}
    </span>
  );
}

function Endpoints({ slice, endpoints }: { slice: SliceStatus; endpoints: EndpointView[] }) {
  const methods = new Map<string, EndpointView[]>();
  for (const one of endpoints) {
    const key = `${one.artifact}\n${one.method}`;
    methods.set(key, [...(methods.get(key) ?? []), one]);
  }
  if (!methods.size) return <p class="soft">No method of it can be called now.</p>;
  return (
    <div>
      <h3>Endpoints</h3>
      <Table caption={`Endpoints of ${slice.base}`} head={["Method", "Version", "Instances", "Where", "How"]}>
        {[...methods.values()].map((some) => {
          const first = some[0];
          if (!first) return null;
          const nodes = [...new Set(some.map((one) => one.node))].sort();
          return (
            <tr key={`${first.artifact} ${first.method}`}>
              <th scope="row" class="mono">
                {first.method}
              </th>
              <td class="mono">{versionOf(first.artifact)}</td>
              <td class="deployments-number">{some.length}</td>
              <td>
                {nodes.slice(0, 8).map((node, i) => (
                  <span key={node}>
                    {i > 0 && ", "}
                    <a href={nodeLink(node)}>{node}</a>
                  </span>
                ))}
                {nodes.length > 8 && ` and ${nodes.length - 8} more`}
              </td>
              <td>{[first.streams ? "streams" : "", first.idempotent ? "may be repeated" : ""].filter(Boolean).join(", ") || "once"}</td>
            </tr>
          );
        })}
      </Table>
    </div>
  );
}

/** What an instance printed: read when the user opens it. */
function Printed({ node, artifact, instance }: { node: string; artifact: string; instance: number }) {
  const [open, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Log</summary>
      {open && <Log path={withQuery(at`/v1/slices/${artifact}/log`, { node, instance, lines: 1000 })} label={`Log of #${instance}`} about="The last 1000 lines that it printed" class="deployments-log" />}
    </details>
  );
}

interface Opened {
  base: string;
  node?: string;
  artifact?: string;
  one?: SliceInstance;
}

/** How it came to be so: of an instance, and of its slice. */
function Why({ base, node, artifact, one, onClose }: Opened & { onClose: () => void }) {
  const [why, setWhy] = useState<WhyView | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const load = (): Promise<void> => get<WhyView>(withQuery("/v1/why", { object: `slice/${base}`, limit: 20 })).then(setWhy, setFailure);
  // What was decided about slices is for those who belong everywhere.
  useEffect(() => void (everywhere.value && load()), [base]);
  const state = one && instanceState(one);
  return (
    <Dialog title={one ? `Instance #${one.instance} of ${artifact}` : `Why ${base} is so`} onClose={onClose} wide>
      {one && state && node && (
        <dl class="facts">
          <dt>State</dt>
          <dd>
            <State look={state[0]}>
              {state[1]} ({one.state})
            </State>
          </dd>
          <dt>Node</dt>
          <dd>
            <a href={nodeLink(node)}>{node}</a>
          </dd>
          {one.since > 0 && (
            <>
              <dt>Since</dt>
              <dd>
                <Clock at={one.since} />
              </dd>
            </>
          )}
          <dt>Restarts</dt>
          <dd>{one.restarts}</dd>
          <dt>Why</dt>
          <dd>{one.why || "nothing was noted"}</dd>
        </dl>
      )}
      {one && node && artifact && deploys.value && <Printed node={node} artifact={artifact} instance={one.instance} />}
      {everywhere.value && <h3>What led to it</h3>}
      {!everywhere.value ? null : failure ? (
        <Failure error={failure} />
      ) : !why ? (
        <Busy>Asking why</Busy>
      ) : (
        <>
          <p>
            <strong>{why.state}</strong>
          </p>
          <ol class="deployments-steps">
            {why.steps.map((step) => (
              <li key={step.id}>
                {step.at !== null && <Clock at={step.at} />} <ObjectLink of={step.subject} />: {step.why || step.what}
              </li>
            ))}
          </ol>
          {why.cut && <p class="soft">There is more: hostler why slice/{base}</p>}
        </>
      )}
      <div class="dialog-actions">
        <Button onClick={onClose}>Close</Button>
      </div>
    </Dialog>
  );
}
