// All labs that one sees: who has what, for how long, who waits; and what to do about one, some, or all of them.
import { useEffect, useMemo, useState } from "preact/hooks";
import { clock } from "../../clock";
import { route, setQuery, to } from "../../route";
import { Busy, Button, type Column, count, Empty, Failure, Head, Left, Select, State, Table, Text, VirtualTable } from "../../ui";
import { span } from "../../ui/time";
import { nodeLink } from "../../objects";
import { forEach, mayTeach, reallyStop, stop, useLabs } from "./data";
import { ExtendDialog, MessageDialog, StartDialog } from "./dialogs";
import { numbered, shapeOf, stateOf, titleOf } from "./words";
import type { Lab, Offers } from "./types";

const SOON = 300;
const STATES = [
  ["", "Any"],
  ["waiting", "Waiting"],
  ["provisioning", "Starting"],
  ["ready", "Ready"],
  ["silent", "Does not answer"],
  ["stopping", "Stopping"],
] as const;

type Asked = "start" | "extend" | "message" | null;

export function Teacher() {
  const { labs, offers, problem, reload } = useLabs();
  const [chosen, choose] = useState<ReadonlySet<string>>(new Set());
  const [asked, ask] = useState<Asked>(null);
  useEffect(() => void (document.title = "Labs · Hostler"), []);
  const query = route.value.query;
  const [search, state, kind] = ["search", "state", "lab"].map((name) => query.get(name) ?? "") as [string, string, string];
  const shown = useMemo(() => (labs ?? []).filter((lab) => fits(lab, search, state, kind)), [labs, search, state, kind]);
  const picked = useMemo(() => shown.filter((lab) => chosen.has(lab.user)), [shown, chosen]);
  if (!labs || !offers) {
    return (
      <>
        <Head title="Labs" />
        {problem ? <Failure error={problem} again={reload} /> : <Busy>Reading the labs</Busy>}
      </>
    );
  }
  const teaches = mayTeach();
  const toggle = (user: string, on: boolean): void => {
    const next = new Set(chosen);
    if (on) next.add(user);
    else next.delete(user);
    choose(next);
  };
  const close = (): void => {
    ask(null);
    void reload();
  };
  return (
    <div class="stack">
      <Head title="Labs">
        {teaches && offers.items.length > 0 && (
          <Button primary onClick={() => ask("start")}>
            Start a lab
          </Button>
        )}
      </Head>
      {problem && <Failure error={problem} again={reload} />}
      {offers.items.length ? <Catalogue offers={offers} /> : <Off />}
      <section class="stack" aria-labelledby="labs-all">
        <h2 id="labs-all">Active labs</h2>
        {labs.length === 0 ? (
          offers.items.length > 0 && <NoLabs teaches={teaches} begin={() => ask("start")} />
        ) : (
          <>
            <search class="filters">
              <Text label="Search" type="search" value={search} onInput={(value) => setQuery({ search: value })} placeholder="User, lab, node or address" />
              <Select label="State" value={state} onChange={(value) => setQuery({ state: value })} options={STATES} />
              <Select label="Lab" value={kind} onChange={(value) => setQuery({ lab: value })} options={[["", "Any"], ...kinds(labs)]} />
            </search>
            <div class="row labs-chosen">
              <span role="status">{picked.length ? `${picked.length} of ${shown.length} chosen` : count(shown.length, "lab")}</span>
              {teaches && shown.length > 0 && (
                <Button small onClick={() => choose(picked.length === shown.length ? new Set() : new Set(shown.map((lab) => lab.user)))}>
                  {picked.length === shown.length ? "Choose none" : "Choose all"}
                </Button>
              )}
              {picked.length > 0 && (
                <>
                  <Button small onClick={() => ask("extend")}>
                    Extend…
                  </Button>
                  <Button small onClick={() => ask("message")}>
                    Message…
                  </Button>
                  <Button small danger onClick={async () => { if (await reallyStop(picked)) { await forEach(picked, stop, (n) => `${count(n, "lab")} ${n === 1 ? "stops" : "stop"}.`); choose(new Set()); await reload(); } }}>
                    Stop…
                  </Button>
                </>
              )}
            </div>
            {shown.length ? (
              <VirtualTable label="Labs" rows={shown} columns={columns(teaches ? { chosen, toggle } : null)} keyOf={(lab) => lab.user} onOpen={(lab) => (location.hash = to("labs", [lab.user]))} />
            ) : (
              <Empty title="No lab matches">
                <Button onClick={() => setQuery({ search: "", state: "", lab: "" })}>Show all</Button>
              </Empty>
            )}
          </>
        )}
      </section>
      {asked === "start" && <StartDialog offers={offers} onClose={() => ask(null)} onDone={close} />}
      {asked === "extend" && <ExtendDialog labs={picked} onClose={close} />}
      {asked === "message" && <MessageDialog labs={picked} onClose={close} />}
    </div>
  );
}

function fits(lab: Lab, search: string, state: string, kind: string): boolean {
  if (kind && String(lab.labId) !== kind) return false;
  const now = lab.phase === "running" ? (lab.available ? "ready" : "silent") : lab.phase;
  if (state && now !== state) return false;
  const wanted = search.trim().toLowerCase();
  return !wanted || [lab.user, titleOf(lab), lab.node, lab.address].some((text) => text.toLowerCase().includes(wanted));
}

function kinds(labs: Lab[]): [string, string][] {
  const found = new Map(labs.map((lab) => [lab.labId, numbered(lab)]));
  return [...found].sort(([a], [b]) => a - b).map(([id, title]) => [String(id), title]);
}

interface Choosing {
  chosen: ReadonlySet<string>;
  toggle: (user: string, on: boolean) => void;
}

function columns(choosing: Choosing | null): Column<Lab>[] {
  const box: Column<Lab> = {
    title: "Chosen",
    width: "5rem",
    cell: (lab) => (
      <input
        type="checkbox"
        aria-label={`Choose the lab of ${lab.user}`}
        checked={choosing?.chosen.has(lab.user) ?? false}
        onClick={(event) => event.stopPropagation()}
        onChange={(event) => choosing?.toggle(lab.user, event.currentTarget.checked)}
      />
    ),
  };
  const rest: Column<Lab>[] = [
    { title: "User", width: "minmax(7rem, 2fr)", cell: (lab) => <a href={to("labs", [lab.user])}>{lab.user}</a> },
    { title: "Lab", width: "minmax(11.5rem, 2fr)", cell: (lab) => numbered(lab) },
    { title: "State", width: "minmax(12.5rem, 1fr)", cell: (lab) => <Standing lab={lab} /> },
    { title: "Time left", width: "8.5rem", cell: (lab) => <TimeLeft lab={lab} /> },
    { title: "Node", width: "minmax(6rem, 1fr)", cell: (lab) => lab.node && <a href={nodeLink(lab.node)} onClick={(event) => event.stopPropagation()}>{lab.node}</a> },
    { title: "Address", width: "minmax(11rem, 3fr)", cell: (lab) => <span class="small">{lab.address}</span> },
  ];
  return choosing ? [box, ...rest] : rest;
}

export function Standing({ lab }: { lab: Lab }) {
  const [look, word] = stateOf(lab);
  return <State look={look}>{word}</State>;
}

export function TimeLeft({ lab }: { lab: Lab }) {
  if (lab.expires_at === null) return <span class="soft">not begun</span>;
  const left = lab.expires_at - clock.value;
  const shown = <Left at={lab.expires_at} over="over" />;
  return left < SOON && lab.phase !== "stopping" ? <State look="warn">{shown}</State> : shown;
}

function Catalogue({ offers }: { offers: Offers }) {
  const all = offers.at_once === null ? `${offers.running}` : `${offers.running} of ${offers.at_once}`;
  return (
    <section aria-labelledby="labs-catalogue" class="stack">
      <h2 id="labs-catalogue">Catalogue</h2>
      <p class="soft">
        In all {all} {offers.running === 1 && offers.at_once === null ? "has" : "have"} a machine, {offers.waiting} {offers.waiting === 1 ? "waits" : "wait"}.
      </p>
      <Table caption="Labs of the catalogue" head={["Lab", "Made of", "Lives", ["With a machine", "number"], ["Waiting", "number"], ["Warm", "number"]]}>
        {offers.items.map((offer) => (
          <tr key={offer.labId}>
            <td>{offer.labId === null ? "Any number" : numbered({ labId: offer.labId, title: offer.template.title })}</td>
            <td>{shapeOf(offer.template)}</td>
            <td>{span(offer.template.life)}</td>
            <td class="number">{offer.template.at_once === null ? offer.running : `${offer.running} of ${offer.template.at_once}`}</td>
            <td class="number">{offer.waiting}</td>
            <td class="number">{offer.template.warm ? `${offer.warm} of ${offer.template.warm}` : "none"}</td>
          </tr>
        ))}
      </Table>
      {offers.items.flatMap((offer) =>
        offer.problems.map((problem) => (
          <p class="note warn" key={`${offer.labId} ${problem}`}>
            {offer.labId === null ? "Every lab" : `Lab ${offer.labId}`}: {problem}.
          </p>
        )),
      )}
      {offers.items.every((offer) => offer.labId === null) && (
        <p class="soft small">
          No catalogue was given, so every number is a lab of the same kind. Write one, and start with <code>hostler up --labs labs.toml</code> (docs/labs.md).
        </p>
      )}
    </section>
  );
}

function Off() {
  return (
    <Empty title="There are no labs">
      <p>Say in a file which labs there are, and start Hostler with it:</p>
      <pre class="labs-file">{'[labs.1]\ntitle = "Files and rights"\nimage = "tiny"\nlife = "90m"'}</pre>
      <code>hostler up --labs labs.toml</code>
    </Empty>
  );
}

function NoLabs({ teaches, begin }: { teaches: boolean; begin: () => void }) {
  return (
    <Empty title="No labs">
      <p>Students who sign in start their own. An account for one:</p>
      <code>hostler user create ada --role viewer --member labs/ada --password</code>
      {teaches && <Button onClick={begin}>Start one for a user</Button>}
    </Empty>
  );
}
