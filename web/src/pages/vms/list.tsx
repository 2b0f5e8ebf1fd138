// All machines that one sees, found by what is typed: 100,000 of them as quickly as ten.
import { useEffect, useMemo, useState } from "preact/hooks";
import { at, del, post } from "../../api";
import { ObjectLink, named } from "../../objects";
import { route, setQuery, to } from "../../route";
import { can, me } from "../../session";
import { Ago, Button, type Column, confirm, Copy, count, Empty, Failure, Head, mib, Select, State, Text, toast, VirtualTable } from "../../ui";
import { chosen, type Filter, filterOf, SORTS } from "./filter";
import { lookOf } from "./phase";
import { RetainedMachines } from "./retained";
import { Rows } from "./rows";
import { PHASES, type VmRow } from "./types";

let kept: { user: string; rows: Rows } | null = null;

/** They outlive the list's page: who comes back from a machine finds them as they are now. */
function rowsOf(user: string): Rows {
  if (kept?.user === user) return kept.rows;
  kept?.rows.close();
  kept = { user, rows: new Rows() };
  return kept.rows;
}

const keyOf = (row: VmRow): string => `${row.org}/${row.project}/${row.id}`;
const linkOf = (row: VmRow): string => to("vms", [row.org, row.project, row.id]);
const AGAIN = 250;

export function List() {
  const rows = rowsOf(me.value?.name ?? "");
  const filter = filterOf(route.value.query);
  const [shown, busy] = useChosen(rows, filter);
  const [marked, setMarked] = useState<ReadonlySet<string>>(new Set());
  const changes = can("modify_workloads");
  useEffect(() => {
    document.title = "Machines · Hostler";
  }, []);
  const columns = useMemo(() => columnsFor(changes, marked, setMarked), [changes, marked]);
  const whole = rows.all.size;
  const nothing = whole === 0 && !rows.reading.value && !rows.problem.value;
  return (
    <>
      <Head title="Machines">
        {changes && (
          <a class="button primary" href={to("vms", ["new"])}>
            Create a machine
          </a>
        )}
      </Head>
      {rows.problem.value && <Failure error={rows.problem.value} again={() => rows.load()} />}
      {nothing ? (
        <Nothing changes={changes} />
      ) : (
        <div class="stack">
          <Filters filter={filter} rows={rows} />
          <Counted rows={rows} shown={shown.length} busy={busy} />
          {changes && marked.size > 0 && <Marked rows={rows} marked={marked} clear={() => setMarked(new Set())} />}
          {shown.length === 0 && !busy && !rows.reading.value ? (
            <Empty title="No machine matches">
              <p>Remove a search term.</p>
              <a class="button" href={to("vms")}>
                Show all machines
              </a>
            </Empty>
          ) : (
            <VirtualTable label="Machines" rows={shown} columns={columns} keyOf={keyOf} onOpen={(row) => (location.hash = linkOf(row))} />
          )}
        </div>
      )}
      <RetainedMachines />
    </>
  );
}

/** How many there are; while they are read, how many came. */
function Counted({ rows, shown, busy }: { rows: Rows; shown: number; busy: boolean }) {
  const whole = rows.all.size;
  const found = shown === whole ? count(whole, "machine") : `${shown.toLocaleString("en")} of ${count(whole, "machine")}`;
  return (
    <p role="status" class="soft small filters-count">
      {rows.reading.value ? `Reading: ${count(rows.read.value, "machine")} so far …` : `${found}${busy ? " · looking …" : ""}`}
    </p>
  );
}

/** The rows to show, and whether others are looked for. While they are, those of before are shown. */
function useChosen(rows: Rows, filter: Filter): [VmRow[], boolean] {
  const [found, setFound] = useState<VmRow[]>([]);
  const [busy, setBusy] = useState(true);
  useEffect(() => {
    const ended = new AbortController();
    const look = async (): Promise<void> => {
      while (!ended.signal.aborted) {
        const version = rows.version.peek();
        const begun = performance.now();
        setBusy(true);
        const next = await chosen(rows.all.values(), filter, ended.signal);
        if (ended.signal.aborted) return;
        setFound(next);
        setBusy(false);
        const took = performance.now() - begun;
        await changed(rows, version, ended.signal);
        // A list that never rests is looked through a few times a second at most, and takes a fifth of the time at most.
        if (next.length) await paused(rows, Math.max(AGAIN, 4 * took));
      }
    };
    void look();
    return () => ended.abort();
  }, [rows, JSON.stringify(filter)]);
  return [found, busy];
}

/** So many milliseconds; shorter if all has been read by then. */
function paused(rows: Rows, pause: number): Promise<void> {
  const reading = rows.reading.peek();
  return new Promise((done) => {
    const timer = setTimeout(() => finish(), pause);
    const stop = rows.reading.subscribe((still) => {
      if (reading && !still) queueMicrotask(() => finish());
    });
    const finish = (): void => {
      clearTimeout(timer);
      stop();
      done();
    };
  });
}

function changed(rows: Rows, version: number, signal: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const stop = rows.version.subscribe((now) => {
      if (now !== version) queueMicrotask(() => finish());
    });
    const finish = (): void => {
      stop();
      done();
    };
    signal.addEventListener("abort", finish);
  });
}

function Filters({ filter, rows }: { filter: Filter; rows: Rows }) {
  const [typed, setTyped] = useState(filter.q);
  const [labels, setLabels] = useState(filter.labels);
  useEffect(() => {
    const timer = setTimeout(() => {
      if (typed !== filter.q || labels !== filter.labels) setQuery({ q: typed, labels });
    }, 120);
    return () => clearTimeout(timer);
  }, [typed, labels]);
  useEffect(() => {
    setTyped(filter.q);
    setLabels(filter.labels);
  }, [filter.q, filter.labels]);
  const reading = rows.reading.value;
  const settled = reading ? -1 : rows.all.size;
  const { nodes, projects } = useMemo(() => namesIn(rows.all.values()), [settled]);
  const project = filter.org && filter.project ? `${filter.org}/${filter.project}` : filter.org;
  return (
    <search class="filters">
      <Text label="Search" type="search" value={typed} onInput={setTyped} placeholder="Name, id or node" />
      <Select label="Phase" value={filter.phase} onChange={(phase) => setQuery({ phase })} options={[["", "All"], ["available", "available"], ...PHASES.map((one) => [one, one] as const)]} />
      <Select label="Node" value={filter.node} onChange={(node) => setQuery({ node })} options={withCurrent(nodes, filter.node)} />
      <Select
        label="Project"
        value={project}
        onChange={(one) => {
          const [org = "", name = ""] = one.split("/");
          setQuery({ org, project: name });
        }}
        options={withCurrent(projects, project)}
      />
      <Text label="Labels" value={labels} onInput={setLabels} placeholder="app=web" />
      <Select label="Order" value={filter.sort} onChange={(sort) => setQuery({ sort: sort === "name" ? "" : sort })} options={SORTS.map((one) => [one, ORDER_WORDS[one]] as const)} />
    </search>
  );
}

const ORDER_WORDS: Record<(typeof SORTS)[number], string> = { name: "By name", phase: "By phase", node: "By node", project: "By project", newest: "Newest first", oldest: "Oldest first" };
const MOST = 500;

function withCurrent(names: string[], current: string): (readonly [string, string])[] {
  const all = current && !names.includes(current) ? [current, ...names] : names;
  return [["", "All"], ...all.map((name) => [name, name] as const)];
}

/** For the lists to choose from; of very many, the first. */
function namesIn(rows: Iterable<VmRow>): { nodes: string[]; projects: string[] } {
  const nodes = new Set<string>();
  const projects = new Set<string>();
  for (const row of rows) {
    if (row.node) nodes.add(row.node);
    projects.add(`${row.org}/${row.project}`);
  }
  const some = (names: Set<string>): string[] => [...names].sort().slice(0, MOST);
  return { nodes: some(nodes), projects: some(projects) };
}

function columnsFor(changes: boolean, marked: ReadonlySet<string>, setMarked: (next: ReadonlySet<string>) => void): Column<VmRow>[] {
  const mark = (row: VmRow, on: boolean): void => {
    const next = new Set(marked);
    if (on) next.add(keyOf(row));
    else next.delete(keyOf(row));
    setMarked(next);
  };
  const columns: Column<VmRow>[] = [
    {
      title: "Name",
      width: "minmax(11rem, 2fr)",
      cell: (row) => (
        <span class="row vms-name">
          {changes && (
            <input
              type="checkbox"
              aria-label={`Mark ${row.name}`}
              checked={marked.has(keyOf(row))}
              onClick={(event) => event.stopPropagation()}
              onChange={(event) => mark(row, event.currentTarget.checked)}
            />
          )}
          <a href={linkOf(row)} onClick={(event) => event.stopPropagation()}>
            {row.name}
          </a>
        </span>
      ),
    },
    { title: "Phase", width: "minmax(7.5rem, 1fr)", cell: (row) => <State look={lookOf(row.phase)}>{row.available ? "available" : row.phase}</State> },
    { title: "Project", width: "minmax(9rem, 1.5fr)", cell: (row) => `${row.org}/${row.project}` },
    { title: "Node", width: "minmax(7rem, 1fr)", cell: (row) => (row.node ? <span onClick={(event) => event.stopPropagation()}><ObjectLink of={named("node", [row.node])}>{row.node}</ObjectLink></span> : <span class="soft">none</span>) },
    { title: "Size", width: "minmax(9.5rem, 1fr)", cell: (row) => `${count(row.cpus, "CPU")}, ${mib(row.memory_mib)}` },
    { title: "Created", width: "minmax(8.5rem, 1fr)", cell: (row) => <Ago at={row.created_at} /> },
    { title: "Detail", width: "minmax(12rem, 3fr)", cell: (row) => <span title={row.detail}>{row.detail}</span> },
  ];
  return columns;
}

type Verb = "start" | "stop" | "delete";
const SAID: Record<Verb, [string, string]> = {
  start: ["Start", "The machines are started."],
  stop: ["Stop", "Each is asked to shut down, and switched off if it does not."],
  delete: ["Delete", "The machines, their disks and their snapshots are destroyed. That cannot be undone."],
};
const AT_ONCE = 8;

function Marked({ rows, marked, clear }: { rows: Rows; marked: ReadonlySet<string>; clear: () => void }) {
  const those = [...marked].map((key) => rows.all.get(key)).filter((row): row is VmRow => row !== undefined);
  const act = async (verb: Verb): Promise<void> => {
    const [word, what] = SAID[verb];
    const names = those.slice(0, 5).map((row) => row.name).join(", ");
    const more = those.length > 5 ? ` and ${those.length - 5} more` : "";
    if (!(await confirm({ title: `${word} ${count(those.length, "machine")}?`, text: <p>{names}{more}. {what}</p>, action: word, danger: verb !== "start" }))) return;
    const failed: string[] = [];
    const left = [...those];
    const worker = async (): Promise<void> => {
      for (let row = left.pop(); row; row = left.pop()) {
        const path = at`/v1/orgs/${row.org}/projects/${row.project}/vms/${row.id}`;
        try {
          await (verb === "delete" ? del(path) : post(`${path}/${verb}`));
        } catch (error) {
          failed.push(`${row.name}: ${error instanceof Error ? error.message : String(error)}`);
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    if (failed.length) toast(`${count(failed.length, "machine")} of ${those.length} did not take it. ${failed[0]}`, "bad");
    else toast(`${word}: ${count(those.length, "machine")}.`);
    clear();
  };
  return (
    <div class="row" role="group" aria-label="What is marked">
      <strong>{count(those.length, "machine")} marked</strong>
      <Button small onClick={() => act("start")}>Start</Button>
      <Button small onClick={() => act("stop")}>Stop</Button>
      <Button small danger onClick={() => act("delete")}>Delete</Button>
      <Button small quiet onClick={clear}>Unmark</Button>
    </div>
  );
}

function Nothing({ changes }: { changes: boolean }) {
  return (
    <Empty title="There is no machine yet">
      {changes ? (
        <>
          <p>Create the first one here, or on the command line:</p>
          <Copy text="hostler vm create web --wait" />
          <a class="button primary" href={to("vms", ["new"])}>
            Create a machine
          </a>
        </>
      ) : (
        <p>You see the machines of your projects here, once there are any. To create some you need the right modify_workloads: ask who manages your account.</p>
      )}
    </Empty>
  );
}
