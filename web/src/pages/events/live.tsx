// The stream of events, newest first.
import { useEffect, useMemo, useState } from "preact/hooks";
import { live } from "../../live";
import { ObjectLink, ofEvent } from "../../objects";
import { route, setQuery, to } from "../../route";
import { Button, type Column, count, Dialog, Empty, Select, Text, VirtualTable } from "../../ui";
import { Why } from "../../why";
import { type Heard, Memory } from "./follow";
import { knownName, named, nameOf } from "./names";
import { GROUPS, happened, happenedAt, home, KIND_WORDS, sentence } from "./words";

export function Follow() {
  const [heard, setHeard] = useState<readonly Heard[]>([]);
  const [held, setHeld] = useState<readonly Heard[] | null>(null);
  const [opened, setOpened] = useState<Heard | null>(null);
  const [read, setRead] = useState(false);
  const [missed, setMissed] = useState(false);
  useEffect(() => {
    const told = (all: readonly Heard[]): void => {
      setHeard(all);
      setRead(true);
    };
    const memory = new Memory(told, () => setMissed(true));
    return () => memory.close();
  }, []);
  const { query } = route.value;
  const wants = filter(query);
  const all = held ?? heard;
  const rows = useMemo(() => all.filter(wants), [all, query.toString(), named.value]);
  const fresh = held ? heard.filter((one) => one.id > (held[0]?.id ?? 0)).length : 0;
  return (
    <div class="stack">
      <Filters />
      <div class="row apart">
        <p class="soft" role="status">
          {rows.length === all.length ? "The" : `${rows.length.toLocaleString("en")} of the`} last {count(all.length, "event")}{held ? "; paused" : live.state.value === "live" ? "" : "; not live, nothing new comes"}
        </p>
        <Button onClick={() => setHeld(held ? null : heard)}>{held ? `Continue${fresh ? ` (${fresh.toLocaleString("en")} new)` : ""}` : "Pause"}</Button>
      </div>
      {missed && <p class="note warn">Some events are missing here: the store had forgotten them before they were sent, or was put back to an older state.</p>}
      {rows.length ? (
        <VirtualTable label="Events, newest first" rows={rows} columns={COLUMNS} keyOf={(one) => String(one.id)} onOpen={setOpened} />
      ) : (
        <Empty title={read && !heard.length ? "Nothing has happened yet" : heard.length ? "None of them is like that" : "Listening"}>
          <p>{heard.length ? "Ask for less above, or wait: new events come by themselves." : "Changes appear here as they happen: create a machine, for example."}</p>
          <p>
            From a terminal: <code>hostler events</code>
          </p>
        </Empty>
      )}
      {opened && <Opened of={opened} onClose={() => setOpened(null)} />}
    </div>
  );
}

function when(of: Heard): string {
  const at = happenedAt(of);
  if (at === null) return "earlier";
  const then = new Date(at);
  const today = then.toDateString() === new Date().toDateString();
  return today ? then.toLocaleTimeString() : then.toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
}

const isMachine = (of: Heard): boolean => of.kind === "vm" || of.kind === "handle";
const machineName = (of: Heard): string => (isMachine(of) ? nameOf(of.subject) : "");

const COLUMNS: Column<Heard>[] = [
  { title: "When", width: "9rem", cell: (one) => <span class="number soft">{when(one)}</span> },
  { title: "What happened", width: "minmax(20rem, 1fr)", cell: (one) => sentence(one, machineName(one)) },
  { title: "Kind", width: "8.5rem", cell: (one) => <span class="soft">{KIND_WORDS[one.kind] ?? one.kind}</span> },
  { title: "Revision", width: "7rem", cell: (one) => <span class="number soft">{one.revision}</span> },
];

// Filters

function filter(query: URLSearchParams): (one: Heard) => boolean {
  const groups = (query.get("kinds") ?? "").split(",").filter(Boolean);
  const kinds = new Set(GROUPS.filter(([name]) => groups.includes(name)).flatMap(([, , kinds]) => kinds));
  const type = query.get("type") ?? "";
  const [org = "", project = ""] = (query.get("of") ?? "").split("/");
  const text = (query.get("text") ?? "").toLowerCase();
  return (one) => {
    if (kinds.size && !kinds.has(one.kind)) return false;
    if (type && one.type !== type) return false;
    if (org) {
      const place = home(one);
      if (!place || place[0] !== org || (project && place[1] !== project)) return false;
    }
    return !text || one.subject.toLowerCase().includes(text) || sentence(one, isMachine(one) ? knownName(one.subject) : "").toLowerCase().includes(text);
  };
}

function Filters() {
  const { query } = route.value;
  const chosen = (query.get("kinds") ?? "").split(",").filter(Boolean);
  const toggle = (name: string): void => setQuery({ kinds: (chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name]).join(",") });
  return (
    <form class="panel stack" role="search" aria-label="Which events" onSubmit={(event) => event.preventDefault()}>
      <div class="row" role="group" aria-label="Kinds">
        {GROUPS.map(([name, title]) => (
          <Button key={name} small pressed={chosen.includes(name)} onClick={() => toggle(name)}>
            {title}
          </Button>
        ))}
      </div>
      <div class="events-fields">
        <Text label="Subject or words" type="search" value={query.get("text") ?? ""} onInput={(text) => setQuery({ text })} />
        <Text label="Org, or org/project" type="search" value={query.get("of") ?? ""} onInput={(of) => setQuery({ of: of.trim() })} />
        <Select
          label="Type"
          value={query.get("type") ?? ""}
          onChange={(type) => setQuery({ type })}
          options={[
            ["", "Written or deleted"],
            ["put", "Written"],
            ["delete", "Deleted"],
          ]}
        />
      </div>
    </form>
  );
}

// One event

function Opened({ of, onClose }: { of: Heard; onClose: () => void }) {
  const about = ofEvent(of.kind, of.subject);
  const at = happenedAt(of);
  const name = machineName(of);
  const [asked, setAsked] = useState(false);
  return (
    <Dialog title="What happened" onClose={onClose} wide>
      <div class="stack">
        <p>
          <ObjectLink of={about}>{name ? `machine ${name}` : about.words}</ObjectLink>: {happened(of)}
        </p>
        <dl class="facts">
          <dt>Kind</dt>
          <dd>
            {of.kind}, {of.type === "put" ? "written" : "deleted"}
          </dd>
          <dt>Subject</dt>
          <dd class="mono">{of.subject}</dd>
          <dt>Revision</dt>
          <dd class="number">{of.revision}</dd>
          <dt>When</dt>
          <dd>{at === null ? "before you signed in" : new Date(at).toLocaleString()}</dd>
        </dl>
        {asked && about.object && <Why object={about.object} />}
        <details open={!asked}>
          <summary>Its record</summary>
          <pre tabIndex={0}>{of.record === null ? "It is gone." : JSON.stringify(of.record, null, 2)}</pre>
        </details>
        <div class="dialog-actions">
          {about.object && !asked && <Button onClick={() => setAsked(true)}>Why?</Button>}
          {about.object && (
            <a class="button" href={to("events", [], { view: "past", object: about.object })} onClick={onClose}>
              What was decided about it
            </a>
          )}
          {about.link && (
            <a class="button" href={about.link}>
              Open {about.kind === "vm" ? "the machine" : `the ${about.kind}`}
            </a>
          )}
          <Button primary onClick={onClose}>
            Close
          </Button>
        </div>
      </div>
    </Dialog>
  );
}
