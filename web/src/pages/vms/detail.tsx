// One machine, live.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { at, asProblem, del, get, post, type Problem } from "../../api";
import type { TerminalKey } from "../../api-types";
import { live, on, onReset } from "../../live";
import { ObjectLink, named } from "../../objects";
import { go, route, setQuery, to } from "../../route";
import { can } from "../../session";
import { Stake } from "../../stake";
import { Ago, attempt, Busy, Button, confirm, Copy, count, Failure, Head, Left, mib, State, Steps, type StepShown, Tabs } from "../../ui";
import { ChangeTab } from "./change";
import { HistoryTab, PlacementTab } from "./reasons";
import { lookOf } from "./phase";
import { LogTab, SnapshotsTab, TerminalTab } from "./inside";
import { stepped, stepsOf } from "./steps";
import { labelsText } from "./input";
import type { Vm } from "./types";

export interface One {
  vm: Vm;
  path: string;
  reload: () => Promise<void>;
}

const ON_NODE_LOSS = {
  wait: "wait for the node; the disk stays there",
  fence: "stop; start again with its disk when the node is back",
  recreate: "stop; start on another node with a new disk from its image",
};

export function Detail({ org, project, vm }: { org: string; project: string; vm: string }) {
  const path = at`/v1/orgs/${org}/projects/${project}/vms/${vm}`;
  const [found, setFound] = useState<Vm | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [deleted, setGone] = useState(false);
  // Answers may come in another order than they were asked for: one that was asked for earlier tells nothing new.
  const turns = useRef({ asked: 0, shown: 0 });
  const reload = useCallback(async (): Promise<void> => {
    turns.current.asked += 1;
    const turn = turns.current.asked;
    const newest = (): boolean => {
      if (turn < turns.current.shown) return false;
      turns.current.shown = turn;
      return true;
    };
    try {
      const now = await get<Vm>(path);
      if (!newest()) return;
      setFound(now);
      setProblem(null);
    } catch (error) {
      if (newest()) setProblem(asProblem(error));
    }
  }, [path]);
  useOne(found ? `${found.org}/${found.project}/${found.id}` : `${org}/${project}/${vm}`, found?.node ?? "", reload, () => setGone(true));
  useEffect(() => {
    document.title = `${found?.name ?? "Machine"} · Hostler`;
  }, [found?.name]);
  const crumbs = (
    <>
      <a href={to("vms")}>Machines</a> / <a href={to("vms", [], { org, project })}>{`${org}/${project}`}</a>
    </>
  );
  if (deleted || (problem && (problem.status === 404 || !found))) {
    const gone = found && (deleted || problem?.status === 404);
    return (
      <>
        <Head title={found?.name ?? vm} crumbs={crumbs} />
        {gone ? (
          <div class="note" role="status">
            <p>
              <strong>{found.name} is gone.</strong> It was deleted.
            </p>
            <a href={to("vms")}>Back to the machines</a>
          </div>
        ) : (
          <Failure error={problem} again={reload} />
        )}
      </>
    );
  }
  if (!found) return <Busy>Reading the machine</Busy>;
  const one: One = { vm: found, path, reload };
  const asked = route.value.query.get("tab") ?? "";
  const tab = tabsFor().some(([name]) => name === asked) ? asked : "overview";
  return (
    <>
      <Head title={found.name} crumbs={crumbs}>
        <span role="status">
          <State look={lookOf(found.phase)}>{found.available ? "available" : found.phase}</State>
        </span>
        {can("modify_workloads") && <Verbs {...one} />}
      </Head>
      {problem && <Failure error={problem} again={reload} />}
      {found.detail && (
        <p class={found.phase === "failed" ? "note bad" : "note"} role="status">
          {found.detail}
        </p>
      )}
      {(found.warnings ?? []).map((warning) => (
        <p class="note warn" role="status" key={warning}>
          {warning}.
        </p>
      ))}
      <Tabs label="About this machine" tabs={tabsFor()} current={tab} onChange={(name) => setQuery({ tab: name === "overview" ? "" : name })}>
        {tab === "overview" && <Overview {...one} />}
        {tab === "terminal" && <TerminalTab {...one} />}
        {tab === "log" && <LogTab {...one} />}
        {tab === "snapshots" && <SnapshotsTab {...one} />}
        {tab === "placement" && <PlacementTab {...one} />}
        {tab === "history" && <HistoryTab {...one} />}
        {tab === "change" && <ChangeTab key={found.id} {...one} />}
      </Tabs>
    </>
  );
}

function tabsFor(): (readonly [string, string])[] {
  const changes = can("modify_workloads");
  return [
    ["overview", "Overview"],
    ...(changes ? ([["terminal", "Terminal"], ["log", "Console log"]] as const) : []),
    ["snapshots", "Snapshots"],
    ["placement", "Placement"],
    ["history", "Events"],
    ...(changes ? ([["change", "Settings"]] as const) : []),
  ];
}

/** Read it once it is listened to, and again whenever something was said of it, or of its node. */
function useOne(subject: string, node: string, reload: () => Promise<void>, gone: () => void): void {
  const streaming = live.state.value === "live";
  useEffect(() => {
    let busy = false;
    let due = false;
    const again = async (): Promise<void> => {
      due = true;
      if (busy) return;
      busy = true;
      while (due) {
        due = false;
        await reload();
      }
      busy = false;
    };
    const stops = [
      on(["vm", "handle", "alive"], (changes) => {
        if (changes.some((one) => one.kind === "vm" && one.subject === subject && one.type === "delete")) gone();
        else if (changes.some((one) => (one.kind === "alive" ? one.subject === node : one.subject === subject))) void again();
      }),
      onReset(() => void again()),
    ];
    void again();
    return () => {
      for (const stop of stops) stop();
    };
  }, [subject, node, reload, streaming]);
}

function Verbs({ vm, path, reload }: One) {
  const act = (verb: "start" | "stop" | "reset", done: string) => attempt(async () => {
    await post(`${path}/${verb}`);
    await reload();
  }, done);
  const stop = async (): Promise<void> => {
    const text = <p>{vm.name} is asked to shut down, and switched off if it does not. What is only in its memory is lost.</p>;
    if (await confirm({ title: `Stop ${vm.name}?`, text, action: "Stop", danger: true })) await act("stop", `${vm.name} stops.`);
  };
  const reset = async (): Promise<void> => {
    const text = <p>{vm.name} is switched off and on, as with its button. What is only in its memory is lost.</p>;
    if (await confirm({ title: `Reset ${vm.name}?`, text, action: "Reset", danger: true })) await act("reset", `${vm.name} is reset.`);
  };
  const remove = async (): Promise<void> => {
    const taken = Object.keys(vm.snapshots).sort();
    const text = (
      <>
        <p>The machine is destroyed with all of this. It cannot be undone.</p>
        <Stake lines={[`its disk${vm.spec.disk_gib ? ` of ${vm.spec.disk_gib} GiB` : ""}`, taken.length ? `its snapshots: ${taken.join(", ")}` : "no snapshots"]} />
      </>
    );
    if (!(await confirm({ title: `Delete ${vm.name}?`, text, action: "Delete", danger: true, typed: vm.name }))) return;
    if (await attempt(() => del(path), `${vm.name} is being deleted.`)) await reload();
  };
  if (vm.phase === "deleting") return <span class="soft">It is being deleted.</span>;
  return (
    <div class="row">
      {vm.power === "off" ? (
        <Button onClick={() => act("start", `${vm.name} starts.`)}>Start</Button>
      ) : (
        <>
          <Button onClick={stop}>Stop</Button>
          <Button onClick={reset}>Reset</Button>
        </>
      )}
      <Button danger onClick={remove}>
        Delete
      </Button>
    </div>
  );
}

function Overview(one: One) {
  const { vm } = one;
  return (
    <div class="two vms-overview">
      <div class="stack">
        <section class="panel" aria-labelledby="vms-way">
          <h2 id="vms-way">{headOf(vm)}</h2>
          <Way vm={vm} />
        </section>
        <section class="panel" aria-labelledby="vms-access">
          <h2 id="vms-access">Access</h2>
          <AccessFacts vm={vm} />
        </section>
      </div>
      <section class="panel" aria-labelledby="vms-facts">
        <h2 id="vms-facts">Facts</h2>
        <dl class="facts">
          <dt>Id</dt>
          <dd class="mono">{vm.id}</dd>
          <dt>Project</dt>
          <dd>
            {vm.org}/{vm.project}
          </dd>
          <dt>Node</dt>
          <dd>{vm.node ? <ObjectLink of={named("node", [vm.node])}>{vm.node}</ObjectLink> : "none yet"}</dd>
          <dt>Size</dt>
          <dd>
            {count(vm.spec.cpus, "CPU")}, {mib(vm.spec.memory_mib)}, disk {vm.spec.disk_gib ? `${vm.spec.disk_gib} GiB` : "as its image's"}
          </dd>
          <dt>Image</dt>
          <dd>{vm.spec.origin ? `clone of ${vm.spec.origin.vm} at ${vm.spec.origin.snapshot}` : vm.spec.image || "the default"}</dd>
          <dt>Power</dt>
          <dd>
            {vm.power}
            {vm.settled ? "" : " (in progress)"}
          </dd>
          <dt>Labels</dt>
          <dd>{labelsText(vm.labels) || "none"}</dd>
          <dt>Created</dt>
          <dd>
            <Ago at={vm.created_at} />
          </dd>
          <dt>Expires</dt>
          <dd>{vm.expires_at ? <Left at={vm.expires_at} over="now" /> : "never"}</dd>
          <dt>On node loss</dt>
          <dd>{ON_NODE_LOSS[vm.on_node_loss]}</dd>
          {vm.disk_since > 0 && (
            <>
              <dt>New disk</dt>
              <dd>
                from its image, <Ago at={vm.disk_since} />
              </dd>
            </>
          )}
          {vm.retained.length > 0 && (
            <>
              <dt>Retained disks</dt>
              <dd>
                {vm.retained.map((each) => (
                  <div key={`${each.node}/${each.name}`}>
                    on node {each.node}, <Ago at={each.retained_at} />: {`${each.node}/${each.name}`} (<a href={to("vms")}>restore or delete it</a> below the list of machines)
                  </div>
                ))}
              </dd>
            </>
          )}
          {vm.at_next_boot.length > 0 && (
            <>
              <dt>At its next boot</dt>
              <dd>{vm.at_next_boot.join(", ")}</dd>
            </>
          )}
        </dl>
      </section>
    </div>
  );
}

const STEP_WORDS: Record<string, string> = {
  pending: "Scheduling",
  placed: "Scheduled",
  creating: "Disk ready",
  starting: "Starting",
  booting: "Booting",
  network: "Network",
  ssh: "SSH server",
  available: "Available",
  running: "Running",
  stopping: "Shutting down",
  stopped: "Off",
  failed: "Failed",
  deleting: "Deleting",
  arriving: "Migrating to another node",
  departed: "Migrated",
};

/** In this order, if nothing comes in between. */
const WAY = ["pending", "placed", "creating", "starting", "booting", "network", "ssh", "available"];
/** Seconds; what comes later than that has nothing to do with its making. */
const LONG = 600;
const OFF = new Set(["stopping", "stopped", "deleting", "departed"]);

const stepOf = (vm: Vm): string => (vm.phase === "running" && vm.readiness ? vm.readiness.step : vm.phase);

function headOf(vm: Vm): string {
  if (vm.available) return "Ready";
  const heads: Partial<Record<string, string>> = { running: "Running", stopped: "Off", failed: "Failed", paused: "Paused", silent: "Unreachable" };
  return heads[stepOf(vm)] ?? "In progress";
}

/** What it went through, with times, as far as this page saw it; where it is, and what comes. */
function Way({ vm }: { vm: Vm }) {
  stepped.value;
  const seen = stepsOf(`${vm.org}/${vm.project}/${vm.id}`);
  const now = stepOf(vm);
  const gone = seen.length ? seen : [{ name: now, at: vm.readiness?.since ?? vm.created_at }];
  const last = gone.at(-1)?.name ?? now;
  const arrived = lookOfStep(last) !== "busy" && last !== "pending";
  const steps: StepShown[] = [
    { name: "Requested", state: "done", note: <Ago at={vm.created_at} /> },
    ...gone.map((step, i): StepShown => {
      const under = i === gone.length - 1 && !arrived;
      const after = step.at - vm.created_at;
      const note = !seen.length ? <Ago at={step.at} since /> : after < LONG ? `after ${after.toFixed(1)} s` : <Ago at={step.at} />;
      return { name: STEP_WORDS[step.name] ?? step.name, state: under ? "now" : "done", look: under ? lookOfStep(step.name) : lookAfter(step.name), note };
    }),
  ];
  const at = WAY.indexOf(last);
  if (at >= 0 && vm.power === "on" && vm.phase !== "deleting") for (const name of WAY.slice(at + 1)) steps.push({ name: STEP_WORDS[name] ?? name, state: "later" });
  return (
    <div aria-live="polite">
      <Steps steps={steps}>{vm.readiness?.cause && <li class="note warn">{vm.readiness.cause}</li>}</Steps>
    </div>
  );
}

const lookAfter = (name: string) => (name === "failed" ? ("bad" as const) : OFF.has(name) ? ("idle" as const) : ("good" as const));

function lookOfStep(name: string) {
  if (name === "available" || name === "running") return "good" as const;
  if (name === "failed" || name === "paused") return "bad" as const;
  return name === "stopped" || name === "silent" ? ("idle" as const) : name === "pending" ? ("warn" as const) : ("busy" as const);
}

/** As a shell takes it for one word. */
const quoted = (word: string): string => (/^\w[\w.-]*$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** The server's own key, which machines let in for the page's sake; null: not known yet. */
function useTerminalKey(): string | null {
  const [key, setKey] = useState<string | null>(null);
  useEffect(() => {
    get<TerminalKey>("/v1/terminal-key").then((found) => setKey(found.key), () => setKey(""));
  }, []);
  return key;
}

function AccessFacts({ vm }: { vm: Vm }) {
  const key = useTerminalKey();
  const own = key !== null && vm.spec.ssh_keys.some((one) => one !== key);
  const name = [vm.name.startsWith("-") ? vm.id : quoted(vm.name), vm.org === "default" ? "" : `--org ${quoted(vm.org)}`, vm.project === "default" ? "" : `--project ${quoted(vm.project)}`].filter(Boolean).join(" ");
  if (!vm.access) {
    if (vm.phase !== "running") return <p class="soft">It has to run first.</p>;
    return (
      <div class="stack">
        <p class="soft">It has no address that one could log into. Its console:</p>
        <Copy text={`hostler vm console ${name}`} />
      </div>
    );
  }
  return (
    <div class="stack">
      <div>
        <p>From anywhere that reaches this server:</p>
        <Copy text={`hostler vm ssh ${name}`} />
        {key !== null && !own && <p class="soft small">That takes a key which was given when the machine was made. None was: open a terminal here.</p>}
      </div>
      {own && (
        <div>
          <p>From its node{vm.node ? ` ${vm.node}` : ""}:</p>
          <Copy text={`ssh -p ${vm.access.port} ${vm.access.user}@${vm.access.host}`} />
        </div>
      )}
      <dl class="facts">
        <dt>User</dt>
        <dd>{vm.access.user}</dd>
        {vm.access.host_keys.map((key) => (
          <>
            <dt>Host key</dt>
            <dd class="mono small">{key}</dd>
          </>
        ))}
      </dl>
      {can("modify_workloads") && (
        <Button onClick={() => go(to("vms", [vm.org, vm.project, vm.id], { tab: "terminal" }))}>Open a terminal</Button>
      )}
    </div>
  );
}
