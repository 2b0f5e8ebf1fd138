// Who did what to what, when, from where: newest first, and older ones page by page.
import { useEffect, useState } from "preact/hooks";
import { asProblem, get, type Page as Listed, type Problem, withQuery } from "../../api";
import type { AuditView as Line } from "../../api-types";
import { live, useLive } from "../../live";
import { ObjectLink, type Thing, thing } from "../../objects";
import { route, setQuery, to } from "../../route";
import { can } from "../../session";
import { Busy, Button, Check, Clock, Empty, Failure, Field, Head, Select, Table, Text } from "../../ui";
import { did, VERBS } from "../../verbs";
import "./audit.css";

const PAGE = 100;
const LOOK_EVERY = 5000;
const KINDS = ["vm", "lab", "node", "blueprint", "workload", "rack", "blade", "pdu", "tor", "region", "zone"];
const keyOf = (line: Line): string => `${line.after} ${line.at} ${line.verb} ${line.subject} ${line.source}`;
const isRefused = (line: Line): boolean => line.verb.startsWith("refused.");

export default function Page() {
  const { query } = route.value;
  const wanted = {
    who: query.get("who") ?? "",
    verb: query.get("verb") ?? "",
    subject: query.get("subject") ?? "",
    day: query.get("day") ?? "",
  };
  return (
    <>
      <Head title="Audit" />
      {can("manage_accounts") ? (
        <div class="stack">
          <Filters wanted={wanted} />
          <Lines key={JSON.stringify(wanted)} wanted={wanted} />
        </div>
      ) : (
        <div class="note warn" role="alert">
          <p>
            <strong>The audit is for those who have the right manage_accounts, and you have not.</strong>
          </p>
          <p>
            Ask an account manager. Changes to objects that you can see are listed under <a href={to("events")}>events</a>.
          </p>
        </div>
      )}
    </>
  );
}

type Wanted = Record<"who" | "verb" | "subject" | "day", string>;

function Filters({ wanted }: { wanted: Wanted }) {
  return (
    <form class="panel audit-fields" role="search" aria-label="Which lines" onSubmit={(event) => event.preventDefault()}>
      <Late label="Who" value={wanted.who} onDone={(who) => setQuery({ who })} />
      <Select label="What" value={wanted.verb} onChange={(verb) => setQuery({ verb })} options={VERBS.some(([verb]) => verb === wanted.verb) ? VERBS : [...VERBS, [wanted.verb, wanted.verb]]} />
      <Late label="To what" value={wanted.subject} onDone={(subject) => setQuery({ subject })} hint="Any part of its key or name: an id, an org, a machine" />
      <Field label="Day">{(named) => <input {...named} type="date" value={wanted.day} onChange={(event) => setQuery({ day: event.currentTarget.value })} />}</Field>
    </form>
  );
}

/** What is typed is asked for once the typing rests: each question goes through thousands of lines. */
function Late({ label, value, onDone, hint }: { label: string; value: string; onDone: (value: string) => void; hint?: string }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text.trim() === value) return;
    const timer = setTimeout(() => onDone(text.trim()), 400);
    return () => clearTimeout(timer);
  }, [text]);
  return <Text label={label} type="search" value={text} onInput={setText} hint={hint} />;
}

function Lines({ wanted }: { wanted: Wanted }) {
  const [lines, setLines] = useState<Line[] | null>(null);
  const [older, setOlder] = useState<string | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [follows, setFollows] = useState(true);
  const read = (after: string | null): Promise<Listed<Line>> => get<Listed<Line>>(withQuery("/v1/audit", { ...wanted, newest: true, limit: PAGE, after }));
  const tried = async (action: () => Promise<void>): Promise<void> => {
    try {
      await action();
      setProblem(null);
    } catch (error) {
      setProblem(asProblem(error));
    }
  };
  const newest = (): Promise<void> =>
    tried(async () => {
      const page = await read(null);
      setLines((known) => {
        if (!known) setOlder(page.after);
        const there = new Set(page.items.map(keyOf));
        return [...page.items, ...(known ?? []).filter((line) => !there.has(keyOf(line)))];
      });
    });
  const more = (): Promise<void> =>
    tried(async () => {
      const page = await read(older);
      setLines((known) => [...(known ?? []), ...page.items]);
      setOlder(page.after);
    });
  useLive(KINDS, () => (follows || !lines ? newest() : undefined), 1000);
  useEffect(() => {
    if (!follows) return;
    // Accounts, tokens and sessions are in the audit, and no events.
    const timer = setInterval(() => live.state.value === "live" && void newest(), LOOK_EVERY);
    return () => clearInterval(timer);
  }, [follows]);
  if (problem && !lines) return <Failure error={problem} again={newest} />;
  if (!lines) return <Busy>Reading the audit</Busy>;
  return (
    <>
      <Check label="Follow" hint="new lines come by themselves" checked={follows} onChange={setFollows} />
      {problem && <Failure error={problem} />}
      {lines.length ? (
        <Table caption="The audit, newest first" head={["When", "Who", "Did", "To what", "Revision", "From", "More"]}>
          {lines.map((line) => (
            <Row key={keyOf(line)} line={line} />
          ))}
        </Table>
      ) : (
        <Empty title={older === null ? "No line matches" : "None among the newest"}>
          <p>{older === null ? "Ask for less above. What was written long ago may be in files on another machine: hostler audit names it." : "There are older ones that were not looked at yet."}</p>
        </Empty>
      )}
      {older !== null && <Button onClick={more}>Older</Button>}
    </>
  );
}

function called(about: Thing, name: string): string {
  if (!name) return about.words;
  return about.kind === "token" ? `a token ${name}` : `${about.words.slice(0, about.words.lastIndexOf("/") + 1)}${name}`;
}

function Row({ line }: { line: Line }) {
  const about = thing(line.subject);
  return (
    <tr>
      <td class="audit-when">
        <Clock at={line.at} />
      </td>
      <td>
        {line.who ? <a href={to("audit", [], { who: line.who })}>{line.who}</a> : "no account"}
      </td>
      <td class="audit-did" title={line.verb}>{did(line.verb)}</td>
      <td class="audit-what">
        {isRefused(line) ? (
          `${line.count} × ${line.name || "several"}`
        ) : (
          <ObjectLink of={about}>{called(about, line.name)}</ObjectLink>
        )}
      </td>
      <td class="number audit-when">
        {isRefused(line) ? "" : line.after ? `${line.before || "new"} → ${line.after}` : "before a restore"}
      </td>
      <td>{line.source || (isRefused(line) ? "several" : "the control plane")}</td>
      <td>
        {about.object && !isRefused(line) && (
          <a href={to("events", [], { view: "past", object: about.object })} aria-label={`events of ${about.words}`}>
            events
          </a>
        )}
      </td>
    </tr>
  );
}
