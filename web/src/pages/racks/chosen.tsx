// What is open: a rack, a pdu or tor, or a blade with its node, its machines and slices, its history and its why.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { asProblem, at, changeShown, del, type Extra, get, patch, post, Problem, withQuery } from "../../api";
import type { TracePage, SlicePage } from "../../api-types";
import { on } from "../../live";
import { ObjectLink } from "../../objects";
import { to } from "../../route";
import { can, everywhere } from "../../session";
import { keptText, machinesOn, ownerOf, retainedOn, Stake } from "../../stake";
import { Ago, attempt, type Branch, Busy, Button, confirm, count, Failure, mib, Select, Share, State, Tabs, Tree } from "../../ui";
import { Break } from "./controls";
import { faultyParts, component, fold, nodeOf, type Part, partsOf, type Rack } from "./floor";
import { feedWord, lifeWord, type LookName, LOOKS, words } from "./look";
import { Sign } from "./legend";
import { refresh, sim } from "./simulation";
import { virtual } from "./time";
import { type Blade, type Condition, CONDITIONS, type Feed, type Flow, type Node, type RackDetail, type Slice, type Trace, type Why } from "./types";
import { address, details } from "./view";

function lookState(look: LookName): "good" | "warn" | "bad" | "idle" | "busy" {
  const found = LOOKS[look].colour;
  return found === "accent" ? "busy" : found;
}

function Title({ children, crumbs, close }: { children: ComponentChildren; crumbs?: ComponentChildren; close: string }) {
  return (
    <div class="racks-title">
      <div>
        {crumbs && <div class="crumbs">{crumbs}</div>}
        <h2 id="racks-chosen" tabIndex={-1}>
          {children}
        </h2>
      </div>
      <a class="button quiet small" href={close}>
        Close
      </a>
    </div>
  );
}

/** How long ago; in a simulation its own time, as its log has it. */
function When({ at }: { at: number }) {
  const view = sim.value;
  return view ? <span class="number">{virtual(Math.max(0, at - (view.wall - view.now)))}</span> : <Ago at={at} />;
}

/** Which step a burn-in or retirement is at, since when, and why. */
function FlowNote({ flow }: { flow: Flow }) {
  const bad = flow.step === "blocked" || flow.step === "failed";
  return (
    <p class={bad ? "note warn" : "note"}>
      {flow.condition === "burn_in" ? "Burn-in" : "Retirement"}: {flow.step}, since <When at={flow.step_at} />. {flow.reason}.
    </p>
  );
}

// A rack

export function RackPanel({ rack }: { rack: Rack }) {
  const flow = details.value.get(rack.key)?.rack.flow;
  const parts = partsOf(rack);
  const on_duty = parts.filter((part) => part.kind === "blade" && part.look === "on_duty").length;
  return (
    <>
      <Title close={address(null)} crumbs={place(rack)}>
        {rack.loose ? "Nodes that are not in the inventory" : `Rack ${rack.name}`}
      </Title>
      {!rack.loose && (
        <dl class="facts">
          {rack.location && <dt>Location</dt>}
          {rack.location && <dd>{rack.location}</dd>}
          <dt>State</dt>
          <dd>
            <State look={rack.objection ? "warn" : "good"}>{rack.objection || "In use"}</State>
          </dd>
          <dt>Blades</dt>
          <dd>
            {rack.blades.length}, {on_duty} on duty
          </dd>
          <dt>Machines</dt>
          <dd>{rack.vms.reduce((sum, n) => sum + n, 0)}</dd>
        </dl>
      )}
      {flow && <FlowNote flow={flow} />}
      {!rack.loose && <Use rack={rack} what={`Rack ${rack.name}`} path={at`/v1/racks/${rack.name}`} enabled={rack.enabled} condition={rack.condition} />}
      {sim.value && !rack.loose && <Break component={rack.key} kind="rack" key={rack.key} />}
      <Parts rack={rack} parts={parts} />
    </>
  );
}

const place = (rack: Rack): string => [rack.region, rack.zone].filter(Boolean).join(" / ");

/** The picture of a rack as a table: the same, for those who cannot see it. */
function Parts({ rack, parts, current = "" }: { rack: Rack; parts: Part[]; current?: string }) {
  return (
    <div class="scroller racks-parts" tabIndex={0} role="region" aria-label={`What is in ${rack.loose ? "no rack" : rack.name}`}>
      <table>
        <caption class="unseen">From the top of the rack to its bottom</caption>
        <thead>
          <tr>
            <th scope="col">From the top</th>
            <th scope="col">State</th>
            <th scope="col" class="number">
              Machines
            </th>
          </tr>
        </thead>
        <tbody>
          {parts.map((part) => (
            <tr key={part.kind + part.name} aria-current={fold(part.name) === current ? "true" : undefined}>
              <th scope="row">
                <a href={address(rack, part.name)}>{part.name}</a>
              </th>
              <td>
                <State look={lookState(part.look)}>{part.feed ? feedWord(part.feed, faultyParts.value.get(component(rack, part.name))) : LOOKS[part.look].word}</State>
              </td>
              <td class="number">{part.kind === "blade" ? rack.vms[part.index] || "" : ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

type InUse = { enabled: boolean; condition: Condition; revision: number };

/** Enabled or not, and where it is in its life. `read` reads it again, where the path alone does not answer that. */
function Use(props: { rack: Rack; what: string; path: string; enabled: boolean; condition: Condition; revision?: number; read?: () => Promise<InUse> }) {
  if (!can("modify_inventory")) return null;
  const { what, path, enabled, condition, revision, read = () => get<InUse>(path) } = props;
  const set = async (change: { enabled?: boolean; condition?: Condition }, question: string): Promise<void> => {
    if (!(await confirm({ title: question, text: "Nodes that depend on it take new machines only while it is enabled and operational. What runs there stays.", action: "Do it" }))) return;
    const send = (extra?: Extra): Promise<unknown> => patch(path, change, extra);
    await attempt(() => (revision === undefined ? send() : changeShown<InUse, unknown>({ enabled, condition, revision }, ["enabled", "condition"], read, send)), `${what}: changed`);
  };
  return (
    <div class="row racks-use">
      <Button small onClick={() => set({ enabled: !enabled }, enabled ? `Disable ${what}?` : `Enable ${what}?`)}>
        {enabled ? "Disable" : "Enable"}
      </Button>
      {condition === "operational" ? (
        <Button small onClick={() => set({ condition: "out_for_repair" }, `Take ${what} out for repair?`)}>
          Out for repair
        </Button>
      ) : (
        <Button small onClick={() => set({ condition: "operational" }, `Put ${what} back into operation?`)}>
          Back into operation
        </Button>
      )}
      <Select
        label="Condition"
        value={condition}
        onChange={(value) => void set({ condition: value as Condition }, `${what}: ${words(value).toLowerCase()}?`)}
        options={CONDITIONS}
      />
    </div>
  );
}

// A pdu or tor

/** A feed as it is now: only its rack tells. */
async function readFeed(rack: string, part: Part): Promise<Feed> {
  const { pdus, tors } = await get<RackDetail>(at`/v1/racks/${rack}`);
  const found = (part.kind === "pdu" ? pdus : tors).find((one) => fold(one.name) === fold(part.name));
  if (!found) throw new Problem(404, "about:hostler/not-found", "Not found", `${rack}/${part.name} is not in the inventory any more.`, "Look at the rack");
  return found;
}

export function FeedPanel({ rack, part }: { rack: Rack; part: Part }) {
  const detail = details.value.get(rack.key);
  const all: Feed[] = (part.kind === "pdu" ? detail?.pdus : detail?.tors) ?? [];
  const feed = all.find((one) => fold(one.name) === fold(part.name));
  const hardware = faultyParts.value.get(component(rack, part.name));
  const title = part.kind === "pdu" ? "Pdu" : "Tor";
  return (
    <>
      <Title close={address(rack)} crumbs={<a href={address(rack)}>Rack {rack.name}</a>}>
        {title} {rack.name}/{part.name}
      </Title>
      <p class="row">
        <Sign look={part.look} />
        <strong>{part.feed && feedWord(part.feed, hardware)}</strong>
      </p>
      {feed && (
        <Use
          rack={rack}
          what={`${title} ${rack.name}/${part.name}`}
          path={at`/v1/racks/${rack.name}/${part.kind}s/${part.name}`}
          enabled={feed.enabled}
          condition={feed.condition}
          revision={feed.revision}
          read={() => readFeed(rack.name, part)}
        />
      )}
      {sim.value && <Break component={component(rack, part.name)} kind={part.kind as "pdu" | "tor"} key={part.name} />}
      <h3>Wired to</h3>
      {feed ? <Ports rack={rack} feed={feed} /> : <Busy>Reading its cables</Busy>}
    </>
  );
}

function Ports({ rack, feed }: { rack: Rack; feed: Feed }) {
  const ports = Object.entries(feed.ports);
  const free = ports.filter(([, port]) => !port.wired).length;
  return (
    <>
      <ul class="racks-ports">
        {ports
          .filter(([, port]) => port.wired && port.item)
          .map(([number, port]) => (
            <li key={number}>
              <span class="soft number">{number}</span> <a href={address(rack, port.item ?? "")}>{port.item}</a>
            </li>
          ))}
      </ul>
      {free > 0 && <p class="soft small">{count(free, "port is", "ports are")} free.</p>}
    </>
  );
}

// A blade

interface Known {
  node: Node | null;
  slices: Slice[];
  why: Why | null;
  traces: Trace[];
}

const KINDS = ["node", "alive", "handle", "slice", "blade", "deployment"];

/** All data of a node; read again when it changes. */
function useNode(node: string, there: boolean): [Known | null, Problem | null] {
  const [known, setKnown] = useState<Known | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    let ended = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    setKnown(null);
    setProblem(null);
    const read = async (): Promise<void> => {
      try {
        const [one, slices, why, traces] = await Promise.all([
          there ? get<Node>(at`/v1/nodes/${node}`) : null,
          get<SlicePage>(withQuery("/v1/slices", { node, limit: 200 })),
          there ? get<Why>(withQuery("/v1/why", { object: `node/${node}` })) : null,
          there ? get<TracePage>(withQuery("/v1/decisions", { object: `node/${node}`, limit: 30 })) : null,
        ]);
        if (!ended) setKnown({ node: one, slices: slices.items, why, traces: traces?.items ?? [] });
      } catch (error) {
        if (!ended) setProblem(asProblem(error));
      }
    };
    void read();
    const stop = on(KINDS, (changes) => {
      const about = changes.some(({ kind, subject, record }) => (kind === "handle" ? (record as { node?: string } | null)?.node === node : kind === "blade" || subject.split("/")[0] === node));
      if (!about || timer) return;
      timer = setTimeout(() => {
        timer = undefined;
        void read();
      }, 700);
    });
    return () => {
      ended = true;
      clearTimeout(timer);
      stop();
    };
  }, [node, there]);
  return [known, problem];
}

export function BladePanel({ rack, part }: { rack: Rack; part: Part }) {
  const node = nodeOf(rack, part.name);
  const detail = details.value.get(rack.key);
  const blade = detail?.blades.find((one) => fold(one.name) === fold(part.name));
  const state = rack.states[part.index] ?? "no_node";
  // A blade may be out for repair with or without an agent: which, its rack tells.
  const there = state === "out_for_repair" ? (blade?.lifecycle ?? null) !== null : state !== "no_node";
  const [known, problem] = useNode(node, there);
  const [tab, setTab] = useState("now");
  const hardware = faultyParts.value.get(component(rack, part.name));
  return (
    <>
      <Title close={rack.loose ? address(null) : address(rack)} crumbs={rack.loose ? "Not in the inventory" : <a href={address(rack)}>Rack {rack.name}</a>}>
        {rack.loose ? `Node ${part.name}` : `Blade ${rack.name}/${part.name}`}
      </Title>
      <p class="row">
        <Sign look={part.look} />
        <strong>{LOOKS[part.look].word}</strong>
        {hardware && <span class="soft">hardware: {hardware}</span>}
        {hardware && rack.states[part.index] !== "on_duty" && <span class="soft">node: {LOOKS[rack.states[part.index] ?? "no_node"].word.toLowerCase()}</span>}
      </p>
      {blade?.flow && <FlowNote flow={blade.flow} />}
      {blade?.objection && <p class="note warn">Takes no new machines: {blade.objection}.</p>}
      {problem && <Failure error={problem} />}
      <Tabs
        label={`About ${part.name}`}
        tabs={[
          ["now", "Now"],
          ["why", "Why"],
          ["history", "History"],
        ]}
        current={tab}
        onChange={setTab}
      >
        {tab === "now" && <Now rack={rack} part={part} blade={blade} detail={detail} known={known} />}
        {tab === "why" && <Reasons known={known} there={there} />}
        {tab === "history" && <History known={known} there={there} node={node} />}
      </Tabs>
    </>
  );
}

function Now({ rack, part, blade, detail, known }: { rack: Rack; part: Part; blade: Blade | undefined; detail: RackDetail | undefined; known: Known | null }) {
  const node = known?.node;
  return (
    <div class="stack">
      {node ? <NodeFacts node={node} since={changedAt(node, known?.traces ?? [])} /> : known ? <p class="soft">No agent has registered as {nodeOf(rack, part.name)} yet. Start one on this blade: hostler agent --node {nodeOf(rack, part.name)}</p> : <Busy>Reading its node</Busy>}
      {node && <Acts node={node} />}
      <Machines names={blade?.machines ?? []} many={rack.vms[part.index] ?? 0} node={node?.node ?? ""} />
      <Slices slices={known?.slices ?? []} />
      {!rack.loose && <Wires rack={rack} part={part} detail={detail} />}
      {blade && (
        <div>
          <h3>In the inventory</h3>
          <dl class="facts">
            <dt>Enabled</dt>
            <dd>{blade.enabled ? "yes" : "no"}</dd>
            <dt>Condition</dt>
            <dd>{words(blade.condition)}</dd>
            {Object.entries(blade.labels).map(([name, value]) => (
              <>
                <dt key={name}>{name}</dt>
                <dd>{value}</dd>
              </>
            ))}
          </dl>
          <Use
            rack={rack}
            what={`Blade ${rack.name}/${part.name}`}
            path={at`/v1/racks/${rack.name}/blades/${part.name}`}
            enabled={blade.enabled}
            condition={blade.condition}
            revision={blade.revision}
          />
        </div>
      )}
      {sim.value && !rack.loose && <Break component={component(rack, part.name)} kind="blade" key={part.name} />}
    </div>
  );
}

/** What was done to a node, or decided about it, that leaves it so. */
const BEGINS: Record<string, readonly string[]> = { ON_DUTY: ["on_duty", "node.activate"], DRAINING: ["node.drain"], DECOMMISSIONED: ["decommissioned"] };

/** When it came to be as it is; null: that is no longer kept. */
function changedAt(node: Node, traces: readonly Trace[]): number | null {
  return traces.find((one) => BEGINS[node.lifecycle]?.includes(one.what))?.at ?? null;
}

function NodeFacts({ node, since }: { node: Node; since: number | null }) {
  const { used, capacity } = node;
  const part = (name: string, a: number, b: number, told: string) => (
    <>
      <dt>{name}</dt>
      <dd>
        <span class="number">{told}</span>
        <Share part={a} whole={b} label={`${name}: ${told}`} />
      </dd>
    </>
  );
  return (
    <dl class="facts">
      <dt>Node</dt>
      <dd>{node.node}</dd>
      <dt>Life</dt>
      <dd>
        {lifeWord(node.lifecycle)}
        {since !== null && (
          <>
            {" "}
            since <When at={since} />
          </>
        )}
        , {node.alive ? "reachable" : "unreachable"}
        {node.off && ` (${node.off.by} confirmed that it is off)`}
      </dd>
      {part("Processors", used.cpus, capacity.cpus, `${used.cpus} of ${capacity.cpus}`)}
      {part("Memory", used.memory_mib, capacity.memory_mib, `${mib(used.memory_mib)} of ${mib(capacity.memory_mib)}`)}
      {capacity.disk_gib > 0 && part("Disk", used.disk_gib, capacity.disk_gib, `${used.disk_gib} GiB of ${capacity.disk_gib} GiB`)}
      {node.refuses && <dt>Refuses</dt>}
      {node.refuses && <dd>{node.refuses}</dd>}
      <dt>Driver</dt>
      <dd>{node.driver || "not known"}</dd>
      <dt>Registered</dt>
      <dd>
        <When at={node.registered_at} />
      </dd>
    </dl>
  );
}

/** What can be done with a node, as far as one's rights and its state go. */
function Acts({ node }: { node: Node }) {
  const name = node.node;
  const path = at`/v1/nodes/${name}`;
  const act = async (verb: string, question: { title: string; text: ComponentChildren; action: string; danger?: boolean }, body?: unknown): Promise<void> => {
    if (!(await confirm(question))) return;
    await attempt(() => changeShown(node, ["lifecycle", "alive", "off"], path, (extra) => post(`${path}/${verb}`, body, extra)), `${name}: asked for`);
  };
  // What is given up is read before the question: without it, nothing is asked and nothing is done.
  const confirmOff = (): Promise<boolean> =>
    attempt(async () => {
      const given = await machinesOn(name, node.vms);
      const text = (
        <>
          <p>You confirm that nothing runs there. Hostler starts its {machines} elsewhere at once, with new disks. If the node is on after all, they run twice.</p>
          {given && <p>These disks and snapshots are given up:</p>}
          {given}
        </>
      );
      await act("confirm-off", { title: `Is ${name} really off?`, text, action: "It is off", danger: true });
    });
  const forget = (): Promise<boolean> =>
    attempt(async () => {
      const retained = await retainedOn(name);
      const text = (
        <>
          <p>It leaves the list of nodes, and returns if its agent registers again.</p>
          {retained.length > 0 && <p>Its {count(retained.length, "retained machine")} can no longer be restored until then. The disks stay in its folder:</p>}
          {retained.length > 0 && <Stake lines={retained.map((one) => `${ownerOf(one)}: ${keptText(one)}`)} />}
        </>
      );
      if (!(await confirm({ title: `Forget ${name}?`, text, action: "Forget it", danger: true }))) return;
      const query = { forget_retained: retained.length > 0 || null };
      await attempt(() => changeShown(node, ["lifecycle", "alive", "off"], path, (extra) => del(withQuery(path, query), extra)), `${name} is forgotten.`);
    });
  const machines = count(node.vms, "machine");
  const drainable = node.lifecycle === "ON_DUTY" || node.lifecycle === "JOINING";
  return (
    <div class="row">
      {can("modify_inventory") && drainable && (
        <>
          <Button small onClick={() => act("drain", { title: `Drain ${name}?`, text: `Its ${machines} are moved to other nodes, one after the other. One that cannot be handed over gets a new disk from its image there, and its old disk is retained here. It takes no new ones until it is activated.`, action: "Drain it" }, { mode: "move" })}>
            Drain
          </Button>
          <Button small onClick={() => act("drain", { title: `Stop everything on ${name}?`, text: `Its ${machines} are stopped, one after the other, and stay there. It takes no new ones until it is activated.`, action: "Drain it by stopping", danger: true }, { mode: "stop" })}>
            Drain by stopping
          </Button>
        </>
      )}
      {can("modify_inventory") && !drainable && (
        <Button small onClick={() => act("activate", { title: `Put ${name} on duty again?`, text: "It takes new machines again.", action: "Activate it" })}>
          Activate
        </Button>
      )}
      {can("perform_repairs") && !node.alive && !node.off && (
        <Button
          small
          danger
          onClick={confirmOff}
        >
          Confirm that it is off
        </Button>
      )}
      {can("modify_inventory") && node.vms === 0 && (!node.alive || node.lifecycle === "DECOMMISSIONED") && (
        <Button small danger onClick={forget}>
          Forget
        </Button>
      )}
    </div>
  );
}

function Machines({ names, many, node }: { names: string[]; many: number; node: string }) {
  return (
    <div>
      <h3>Machines</h3>
      {many === 0 && <p class="soft">None.</p>}
      <ul class="racks-list" aria-label="Machines of this node">
        {names.map((name) => (
          <li key={name}>
            <a href={to("vms", name.split("/"))}>{name}</a>
          </li>
        ))}
      </ul>
      {many > names.length && (
        <p class="soft small">
          {everywhere.value ? `${many - names.length} more. ` : `${many - names.length} more, or of projects that you do not see. `}
          {node && <a href={to("vms", [], { node })}>All machines of this node</a>}
        </p>
      )}
    </div>
  );
}

function Slices({ slices }: { slices: Slice[] }) {
  if (!slices.length) return null;
  return (
    <div>
      <h3>Slices</h3>
      <ul class="racks-list" aria-label="Slices of this node">
        {slices.map((slice) => (
          <li key={slice.artifact}>
            <ObjectLink of={`slice/${slice.artifact}`}>{slice.artifact}</ObjectLink>{" "}
            <span class="soft small">
              {slice.instances.map((one) => `#${one.instance} ${one.state.toLowerCase()}${one.ready ? "" : ", not ready"}`).join("; ")}
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}

const broken = (cable: string): boolean => sim.value?.faults.some((fault) => fold(fault.on) === cable) ?? false;

/** Of a simulation. */
async function unplug(kind: "pdu" | "tor", cable: string): Promise<void> {
  await attempt(() => post("/v1/sim/faults", { fault: kind === "pdu" ? "power" : "network", on: cable }), `${cable} is unplugged`);
  await refresh();
}

function Wires({ rack, part, detail }: { rack: Rack; part: Part; detail: RackDetail | undefined }) {
  if (!detail) return null;
  const wires = (kind: "pdu" | "tor", feeds: Feed[]) =>
    feeds.flatMap((feed) =>
      Object.entries(feed.ports)
        .filter(([, port]) => port.wired && fold(port.item ?? "") === fold(part.name))
        .map(([port]) => ({ kind, feed, port })),
    );
  const found = [...wires("pdu", detail.pdus), ...wires("tor", detail.tors)];
  return (
    <div>
      <h3>Cables</h3>
      {found.length === 0 && <p class="soft">It is wired to nothing.</p>}
      <ul class="racks-list">
        {found.map(({ kind, feed, port }) => {
          const state = faultyParts.value.get(`${component(rack, feed.name)}:${port}`) ?? feedWord(feed, faultyParts.value.get(component(rack, feed.name)));
          return (
            <li key={kind + feed.name + port}>
              {kind === "pdu" ? "Power from " : "Network by "}
              <a href={address(rack, feed.name)}>{feed.name}</a>, port {port} <span class="soft small">{state.toLowerCase()}</span>{" "}
              {sim.value && can("inject_faults") && !broken(`${component(rack, feed.name)}:${port}`) && (
                <Button small quiet label={`Unplug ${feed.name} port ${port}`} onClick={() => unplug(kind, `${component(rack, feed.name)}:${port}`)}>
                  Unplug
                </Button>
              )}
            </li>
          );
        })}
      </ul>
    </div>
  );
}

// Why

/** Each step under what came of it: from what is, down to what began it. */
export function because(steps: readonly Trace[]): Branch[] {
  const byId = new Map(steps.map((step) => [step.id, step]));
  const causes = new Set(steps.map((step) => step.parent).filter((id) => byId.has(id)));
  const grow = (step: Trace, seen: ReadonlySet<string>): Branch => {
    const cause = seen.has(step.parent) ? undefined : byId.get(step.parent);
    const children = cause ? [grow(cause, new Set([...seen, step.id]))] : step.open ? [{ key: `${step.id}…`, content: <span class="soft">what led to it is no longer kept, or not for you to see</span> }] : [];
    return { key: step.id, content: <Step of={step} />, children };
  };
  return steps.filter((step) => !causes.has(step.id)).map((step) => grow(step, new Set()));
}

function Step({ of }: { of: Trace }) {
  return (
    <>
      <ObjectLink of={of.subject} />: {of.why || of.what} <span class="soft small">({of.actor}{of.at !== null && <>, <When at={of.at} /></>})</span>
    </>
  );
}

function Reasons({ known, there }: { known: Known | null; there: boolean }) {
  if (!there) return <p class="soft">No decision yet: no agent has registered for this blade.</p>;
  if (!known) return <Busy>Asking why</Busy>;
  const { why } = known;
  if (!why) return null;
  // Of a node that lives the server tells when its agent started, which is not when it came to be as it is.
  const since = known.node?.alive ? changedAt(known.node, known.traces) : why.since;
  return (
    <>
      <p>
        <strong>
          {why.object} {why.state.replace("is decommissioned", "is drained").replace("is shutting down", "is shut down")}
        </strong>{" "}
        {since !== null && <span class="soft">since <When at={since} /></span>}
      </p>
      <Tree label="Because" branches={because(why.steps)} />
      {why.cut && <p class="soft small">There is more: hostler why {why.object.replace(" ", "/")} --reasons</p>}
    </>
  );
}

function History({ known, there, node }: { known: Known | null; there: boolean; node: string }) {
  if (!there) return <p class="soft">Nothing yet.</p>;
  if (!known) return <Busy>Reading its history</Busy>;
  return (
    <>
      <ul class="racks-list" aria-label="What happened to this node, newest first">
        {known.traces.map((step) => (
          <li key={step.id}>
            <Step of={step} />
          </li>
        ))}
      </ul>
      {!known.traces.length && <p class="soft">Nothing that is still kept.</p>}
      <p>
        <a href={to("events", [], { view: "past", object: `node/${node}` })}>All that happened to {node}</a>
      </p>
    </>
  );
}
