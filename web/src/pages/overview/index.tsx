// How it all stands, what needs a look first. It follows the stream of events, and asks every few seconds besides:
// that a store has gone silent, or a leadership was renewed, is no event.
import { useEffect, useState } from "preact/hooks";
import { asProblem, get, type Problem } from "../../api";
import { now } from "../../clock";
import { live, rate, useLive } from "../../live";
import { ObjectLink, thing } from "../../objects";
import { to } from "../../route";
import { can, everywhere } from "../../session";
import { Ago, Busy, Button, Clock, Copy, count, Empty, Failure, Head, Left, Share, State, Table } from "../../ui";
import { span } from "../../ui/time";
import type { AtWork, Concern, Counts, Leader, Overview, Replica, Store, Takeover } from "./types";
import { BLUEPRINTS, bytes, LABS, NODES, rows, short, total, VMS } from "./words";
import "./overview.css";

const KINDS = ["vm", "handle", "lab", "node", "alive", "leader", "blueprint", "deployment", "slice"];
const ASK_EVERY = 5000;

export default function Page() {
  const [seen, setSeen] = useState<Overview | null>(null);
  const [heardAt, setHeardAt] = useState(0);
  const [problem, setProblem] = useState<Problem | null>(null);
  const load = async (): Promise<void> => {
    try {
      setSeen(await get<Overview>("/v1/overview"));
      setHeardAt(now());
      setProblem(null);
    } catch (error) {
      setProblem(asProblem(error));
    }
  };
  useLive(KINDS, load);
  useEffect(() => {
    const timer = setInterval(() => void load(), ASK_EVERY);
    return () => clearInterval(timer);
  }, []);
  if (!seen) {
    return (
      <>
        <Head title="Overview" />
        {problem ? <Failure error={problem} again={load} /> : <Busy>Loading the overview</Busy>}
      </>
    );
  }
  const old = live.state.value === "stale" || problem !== null;
  return (
    <>
      <Head title="Overview">{old ? <Old at={heardAt} /> : <Rate />}</Head>
      <div class={old ? "stack overview old" : "stack overview"}>
        <Attention seen={seen} skew={seen.at - heardAt} />
        <First seen={seen} />
        <Figures seen={seen} />
        <AtWorkNow of={seen.deployments} />
        <Control seen={seen} skew={seen.at - heardAt} />
      </div>
    </>
  );
}

function Old({ at }: { at: number }) {
  return (
    <p class="note warn overview-old" role="status">
      <State look="warn">Not live</State>: as of <Clock at={at} /> (<Ago at={at} />)
    </p>
  );
}

/** Events of the last two minutes. */
function Rate() {
  const counts = live.counts.value;
  const most = Math.max(1, ...counts);
  const points = counts.map((n, i) => `${i},${28 - (n / most) * 26}`).join(" ");
  const now = rate(counts);
  const words = `${now < 10 ? now.toFixed(1) : Math.round(now)} events per second`;
  return (
    <a class="overview-rate" href={to("events")} aria-label={`${words}, over the last minute; at most ${most} in one second of the last two minutes. Follow them`}>
      <svg viewBox="0 0 119 30" preserveAspectRatio="none" aria-hidden="true">
        <polyline points={points} />
      </svg>
      <span class="number">{words}</span>
    </a>
  );
}

// Needs attention

function Attention({ seen, skew }: { seen: Overview; skew: number }) {
  const alarms = ofTheControlPlane(seen);
  const calm = !alarms.length && !seen.attention.length;
  return (
    <section aria-labelledby="overview-look" class={calm ? "note good" : "note bad"}>
      <h2 id="overview-look">{calm ? "All healthy" : "Needs attention"}</h2>
      {!calm && (
        <ul class="overview-concerns" aria-live="polite">
          {alarms.map((words) => (
            <li key={words}>
              <strong>{words}</strong>
            </li>
          ))}
          {seen.attention.map((concern) => (
            <Worry key={concern.what} concern={concern} skew={skew} />
          ))}
        </ul>
      )}
    </section>
  );
}

function ofTheControlPlane({ store, control, ready }: Overview): string[] {
  if (!store.answers) {
    const silent = store.silent_for === null ? "" : ` for ${span(store.silent_for)}`;
    return [`The store has not answered${silent}. Nothing can be written, and what you see may be old. Look at the store.`];
  }
  if (control && !control.leader) return ["No leader: requests are accepted, but no controller acts on them. Start a replica: hostler replica --wait."];
  if (!store.writable) return [`The store takes no writes: ${store.problem}.`];
  return ready ? [] : ["This replica has not read all of the store yet."];
}

/** In words, and where they are listed. */
const WORRIES: Record<string, [words: (n: number) => string, list: string]> = {
  "brake-held": [
    (n) => `${count(n, "node")} became unreachable together: none is switched off, no machine is taken (hostler node brake show)`,
    to("racks", [], { state: "silent" }),
  ],
  "store-full": [() => "The store is full and takes no writes", to("overview")],
  "store-filling": [() => "The store is filling up", to("overview")],
  "store-refuses": [() => "The store takes no writes", to("overview")],
  "vms-failed": [(n) => (n === 1 ? "1 machine has failed" : `${n.toLocaleString("en")} machines have failed`), to("vms", [], { phase: "failed" })],
  "vms-silent": [(n) => `${count(n, "machine")} may or may not run: ${n === 1 ? "its node is" : "their nodes are"} unreachable`, to("vms", [], { phase: "silent" })],
  "vms-paused": [(n) => `${count(n, "machine")} ${n === 1 ? "is" : "are"} paused: no room for what ${n === 1 ? "it writes" : "they write"}`, to("vms", [], { phase: "paused" })],
  "vms-waiting": [(n) => `${count(n, "machine")} ${n === 1 ? "waits" : "wait"} for a node`, to("vms", [], { phase: "pending" })],
  "nodes-silent": [(n) => `${count(n, "node")} ${n === 1 ? "is" : "are"} unreachable`, to("racks", [], { state: "silent" })],
  "blueprints-failed": [(n) => (n === 1 ? "1 deployment was given up" : `${n} deployments were given up`), to("deployments", [], { phase: "failed" })],
  "blueprints-waiting": [(n) => (n === 1 ? "1 deployment is stuck" : `${n} deployments are stuck`), to("deployments", [], { phase: "waiting" })],
  "clock-in-doubt": [() => "The leader's clock is in doubt: machines, disks, labs, tokens and audit do not expire", to("events")],
  "labs-refused": [(n) => (n === 1 ? "1 user got no lab in the last hour" : `${n} users got no lab in the last hour`), to("labs")],
};

function Worry({ concern, skew }: { concern: Concern; skew: number }) {
  const [words, list] = WORRIES[concern.what] ?? [(n: number) => `${concern.what}: ${n}`, to("events")];
  const more = concern.count - concern.examples.length;
  return (
    <li>
      <a href={list}>
        <strong>{words(concern.count)}</strong>
      </a>
      <ul>
        {concern.examples.map(({ object, name, detail, since }) => (
          <li key={object}>
            {object === "store" ? name : <ObjectLink of={thing(object)}>{name}</ObjectLink>}
            {detail && `: ${detail}`} {since !== null && <span class="soft"><Ago at={since - skew} since /></span>}{" "}
            {object !== "store" && (
              <a class="small" href={to("events", [], { view: "why", object })} aria-label={`Why ${name} is so`}>
                why
              </a>
            )}
          </li>
        ))}
        {more > 0 && (
          <li>
            and <a href={list}>{more.toLocaleString("en")} more</a>
          </li>
        )}
      </ul>
    </li>
  );
}

/** Where there is nothing yet. */
function First({ seen }: { seen: Overview }) {
  const nodes = total(seen.nodes);
  if (total(seen.vms) || total(seen.labs)) return null;
  if (!nodes) {
    return (
      <Empty title="There is no node yet">
        <p>Machines run on nodes, and a node is where an agent runs. Start one there:</p>
        <Copy text="hostler agent --node rack1-b1 --store etcd://HOST:2379" />
        <p>Or load what stands in your datacenter first: the racks page takes an inventory.</p>
        <a class="button primary" href={to("racks")}>
          Go to the racks
        </a>
      </Empty>
    );
  }
  if (!can("modify_workloads")) {
    return (
      <Empty title={everywhere.value ? "There is no machine yet" : "There is no machine that you see"}>
        <p>Your account can read but not create: ask an account manager for the right modify_workloads.</p>
      </Empty>
    );
  }
  return (
    <Empty title={everywhere.value ? "There is no machine yet" : "There is no machine that you see"}>
      <p>{count(nodes, "node")} {nodes === 1 ? "waits" : "wait"} for something to do. Create {everywhere.value ? "the first" : "a"} machine here, or from a terminal:</p>
      <a class="button primary" href={to("vms", ["new"])}>
        Create a machine
      </a>
      <Copy text="hostler vm create web" />
    </Empty>
  );
}

// Figures

/** To those who see a part, there may be others. */
const NONE_SEEN = "none that you see";

function Figures({ seen }: { seen: Overview }) {
  return (
    <div class="grid overview-figures">
      <Figure title="Nodes" page="racks" list={(state) => to("racks", [], { state: LEFT.has(state) ? "left" : state })} counts={seen.nodes} known={NODES} none="none has joined" />
      <Figure title="Machines" page="vms" list={(phase) => to("vms", [], { phase })} counts={seen.vms} known={VMS} none={everywhere.value ? "none yet" : NONE_SEEN} />
      <Figure title="Labs" page="labs" list={(phase) => to("labs", [], { state: phase === "running" ? "ready" : phase })} counts={seen.labs} known={LABS} none={everywhere.value ? "no labs" : NONE_SEEN} />
      <Figure title="Deployments" page="deployments" list={(phase) => to("deployments", [], { phase })} counts={seen.blueprints} known={BLUEPRINTS} none="no blueprint was applied" />
    </div>
  );
}

/** Nodes that are shown as one on the page of racks. */
const LEFT = new Set(["shutting_down", "decommissioned"]);

interface FigureProps {
  title: string;
  page: string;
  /** Where those in one state are listed. */
  list: (state: string) => string;
  counts: Counts;
  known: Parameters<typeof rows>[1];
  none: string;
}

function Figure({ title, page, list, counts, known, none }: FigureProps) {
  const all = total(counts);
  return (
    <section class="panel" aria-label={title}>
      <h2>{title}</h2>
      <a class="figure" href={to(page)} aria-label={`${title}: ${all}`}>
        {all.toLocaleString("en")}
      </a>
      <ul class="overview-states">
        {rows(counts, known).map(([state, words, look, n]) => (
          <li key={state}>
            <a href={list(state)}>
              <State look={look}>
                {n.toLocaleString("en")} {words}
              </State>
            </a>
          </li>
        ))}
        {!all && <li class="soft">{none}</li>}
      </ul>
    </section>
  );
}

function AtWorkNow({ of }: { of: AtWork[] }) {
  if (!of.length) return null;
  return (
    <section aria-labelledby="overview-work">
      <h2 id="overview-work">Deployments in progress</h2>
      <Table caption="Deployments in progress" head={["Blueprint", "State", "How far", "Why"]}>
        {of.map((one) => (
          <tr key={one.name}>
            <td>
              <a href={to("deployments", [one.name])}>{one.name}</a>
            </td>
            <td>
              <State look={BLUEPRINTS.find(([phase]) => phase === one.phase)?.[2] ?? "idle"}>{one.phase}</State>
            </td>
            <td class="overview-far">
              {one.ready} of {count(one.instances, "instance")} serve
              <Share part={one.ready} whole={one.instances} label={`${one.ready} of ${one.instances}`} />
            </td>
            <td>{one.detail}</td>
          </tr>
        ))}
      </Table>
    </section>
  );
}

// The control plane

/** `skew`: by how much the server's clock is ahead of ours. That of a simulation may be by years. */
function Control({ seen, skew }: { seen: Overview; skew: number }) {
  const { control, store } = seen;
  return (
    <div class="two">
      <section class="panel" aria-labelledby="overview-leader">
        <h2 id="overview-leader">Leader</h2>
        {!control ? (
          <p>
            <State look="idle">Not known</State> while the store does not answer.
          </p>
        ) : control.leader ? (
          <Leads leader={control.leader} ready={seen.ready} skew={skew} simulation={seen.simulation} />
        ) : (
          <p>
            <State look="bad">No leader</State>
          </p>
        )}
      </section>
      <StoreHealth store={store} ready={seen.ready} />
      {seen.simulation && (
        <p class="note overview-whole">
          This is a simulation. Its replicas, and what happened to them, are on <a href={to("racks")}>the page of racks</a>.
        </p>
      )}
      {control && !seen.simulation && <Replicas of={control.replicas} skew={skew} />}
      {control && !seen.simulation && <History of={control.takeovers} skew={skew} />}
    </div>
  );
}

function Leads({ leader, ready, skew, simulation }: { leader: Leader; ready: boolean; skew: number; simulation: boolean }) {
  return (
    <dl class="facts">
      <dt>Address</dt>
      <dd>
        <State look="good">{leader.address}</State>
      </dd>
      <dt>Holder</dt>
      <dd>
        <code title={leader.holder}>{short(leader.holder)}</code>
      </dd>
      <dt>Fence</dt>
      <dd class="number">{leader.fence}</dd>
      {(leader.since !== null || !simulation) && (
        <>
          <dt>Leads</dt>
          <dd>{leader.since === null ? "since a time that is not known" : <Ago at={leader.since - skew} since />}</dd>
        </>
      )}
      <dt>Time left</dt>
      <dd>
        {leader.ends_at === null ? "not known" : <Left at={leader.ends_at - skew} over="over, unless it was just renewed" />}
        {leader.ttl !== null && <span class="soft"> of {span(leader.ttl)}, renewed every {span(leader.ttl / 4)}</span>}
      </dd>
      <dt>This server</dt>
      <dd>{ready ? <State look="good">ready</State> : <State look="warn">not ready: it does not follow the store</State>}</dd>
    </dl>
  );
}

function StoreHealth({ store, ready }: { store: Store; ready: boolean }) {
  return (
    <section class="panel" aria-labelledby="overview-store">
      <h2 id="overview-store">Store</h2>
      <dl class="facts">
        <dt>Health</dt>
        <dd>
          {store.answers && !store.writable ? (
            <State look="bad">takes no writes</State>
          ) : store.answers ? (
            <State look="good">answers{ready ? "" : ", not all of it read yet"}</State>
          ) : (
            <State look="bad">no answer{store.silent_for === null ? "" : ` for ${span(store.silent_for)}`}</State>
          )}
        </dd>
        <dt>Revision</dt>
        <dd class="number">{store.revision?.toLocaleString("en") ?? "not known"}</dd>
        <dt>Engine</dt>
        <dd>{store.engine ? `${store.engine} ${store.version}` : "not known"}</dd>
        <dt>Size</dt>
        <dd>{store.size_bytes === null ? "not known" : bytes(store.size_bytes)}{store.quota_bytes !== null && ` of ${bytes(store.quota_bytes)}`}</dd>
      </dl>
    </section>
  );
}

function Replicas({ of, skew }: { of: Replica[]; skew: number }) {
  return (
    <section class="overview-whole" aria-labelledby="overview-replicas">
      <h2 id="overview-replicas">Replicas</h2>
      <Table caption="Replicas" head={["Address", "Role", "Holder", "Running"]}>
        {of.map((one) => (
          <tr key={one.holder}>
            <td>{one.address}</td>
            <td>{one.leads ? <State look="good">leads</State> : <State look="idle">{one.key === null ? "stands by" : `holds key ${one.key}`}</State>}</td>
            <td>
              <code title={one.holder}>{short(one.holder)}</code>
            </td>
            <td>
              <Ago at={one.started_at - skew} since />
            </td>
          </tr>
        ))}
        {!of.length && (
          <tr>
            <td colSpan={4}>No replica says that it runs.</td>
          </tr>
        )}
      </Table>
    </section>
  );
}

const FEWER = 5;
const BEFORE = { none: "no earlier leader is known", released: "released", silent: "became unreachable" };

function History({ of, skew }: { of: Takeover[]; skew: number }) {
  const [all, setAll] = useState(false);
  return (
    <section class="overview-whole" aria-labelledby="overview-history">
      <h2 id="overview-history">Takeovers</h2>
      <Table caption="Takeovers, newest first" head={["When", ["Fence", "number"], "Who", "Before"]}>
        {(all ? of : of.slice(0, FEWER)).map((one) => (
          <tr key={one.fence}>
            <td class="overview-when">
              <Ago at={one.at - skew} />
            </td>
            <td class="number">{one.fence}</td>
            <td>
              {one.address} <code title={one.holder}>{short(one.holder)}</code>
            </td>
            <td class="overview-before">
              {one.previous_holder && (
                <>
                  {one.previous_address} <code title={one.previous_holder}>{short(one.previous_holder)}</code>:{" "}
                </>
              )}
              {BEFORE[one.previous]}
            </td>
          </tr>
        ))}
        {!of.length && (
          <tr>
            <td colSpan={4}>None was written down yet.</td>
          </tr>
        )}
      </Table>
      {of.length > FEWER && (
        <Button small onClick={() => setAll(!all)}>
          {all ? "Show fewer" : `Show all ${of.length}`}
        </Button>
      )}
    </section>
  );
}
