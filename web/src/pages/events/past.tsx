// Decisions and requests, each under its cause; the newest trees first.
import { useState } from "preact/hooks";
import { asProblem, get, type Problem, withQuery } from "../../api";
import type { TracePage } from "../../api-types";
import { useLive } from "../../live";
import { route } from "../../route";
import { Busy, Button, count, Empty, Failure, Tree } from "../../ui";
import type { Branch } from "../../ui/tree";
import { Step, type Trace } from "../../why";
import { ObjectField } from "./asked";

const PAGE = 50;

export function Past() {
  const object = route.value.query.get("object") ?? "";
  return (
    <div class="stack">
      <ObjectField action="Show" optional />
      <Traces key={object} object={object} />
    </div>
  );
}

function Traces({ object }: { object: string }) {
  const [found, setFound] = useState<Trace[] | null>(null);
  const [after, setAfter] = useState<string | null>(null);
  const [unreadable, setUnreadable] = useState(0);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [older, setOlder] = useState(false);
  const read = async (from: string | null): Promise<void> => {
    try {
      const page = await get<TracePage>(withQuery("/v1/decisions", { object, limit: PAGE, after: from }));
      setFound((known) => joined(from === null ? [] : (known ?? []), [...page.items, ...page.before]));
      setAfter(page.after);
      setUnreadable(page.unreadable);
      setProblem(null);
    } catch (error) {
      setProblem(asProblem(error));
    }
  };
  // Who reads older ones is not called back to the newest.
  useLive(["vm", "handle", "lab", "node", "alive", "deployment", "blueprint", "workload"], () => (older ? undefined : read(null)), 2000);
  if (problem && !found) return <Failure error={problem} again={() => read(null)} />;
  if (!found) return <Busy>Reading what was decided</Busy>;
  if (!found.length && after === null) {
    return (
      <Empty title="No decisions or requests in this period">
        <p>Decisions are kept for some days; requests are kept with the audit log.</p>
        <p>
          From a terminal: <code>hostler events --tree</code>
        </p>
      </Empty>
    );
  }
  return (
    <div class="stack">
      {problem && <Failure error={problem} />}
      <section class="panel" aria-label="Decisions">
        <Tree label="What was decided, under what led to it" branches={grown(found)} />
      </section>
      {unreadable > 0 && <p class="note warn">{count(unreadable, "record cannot be read, and is", "records cannot be read, and are")} left out.</p>}
      {after !== null && (
        <Button
          onClick={() => {
            setOlder(true);
            return read(after);
          }}
        >
          Older
        </Button>
      )}
    </div>
  );
}

function joined(known: Trace[], more: Trace[]): Trace[] {
  const all = new Map(known.map((one) => [one.id, one]));
  for (const one of more) all.set(one.id, { ...one, parent: one.parent || all.get(one.id)?.parent || "" });
  return [...all.values()];
}

/** What nothing is known to have led to stands first in its tree. The tree in which something happened last comes first. */
function grown(traces: Trace[]): Branch[] {
  const known = new Set(traces.map((one) => one.id));
  const below = new Map<string, Trace[]>();
  for (const one of [...traces].sort((a, b) => a.revision - b.revision)) {
    const parent = known.has(one.parent) ? one.parent : "";
    below.set(parent, [...(below.get(parent) ?? []), one]);
  }
  const last = new Map<string, number>();
  const branch = (one: Trace): Branch => {
    const children = (below.get(one.id) ?? []).map(branch);
    last.set(one.id, Math.max(one.revision, ...children.map((child) => last.get(child.key) ?? 0)));
    return { key: one.id, content: <Step of={one} />, children };
  };
  const roots = (below.get("") ?? []).map(branch);
  return roots.sort((a, b) => (last.get(b.key) ?? 0) - (last.get(a.key) ?? 0));
}
