import type { ComponentChildren } from "preact";
import { route, setQuery } from "../../route";
import { Button, count, Empty, Select, Text } from "../../ui";

/** Which of a list are shown: those in this state in whose words all that was typed is found. What is asked for lives in the hash. */
export function chosen<T extends { phase: string }>(items: readonly T[], words: (one: T) => string[]): T[] {
  const { query } = route.value;
  const phase = query.get("phase") ?? "";
  const typed = (query.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  return items.filter((one) => {
    if (phase && one.phase !== phase) return false;
    const text = words(one).join("\n").toLowerCase();
    return typed.every((word) => text.includes(word));
  });
}

interface Filtered {
  phases: readonly string[];
  hint: string;
  shown: number;
  whole: number;
  /** What one of them is called. */
  one: string;
  children: ComponentChildren;
}

export function Filtered({ phases, hint, shown, whole, one, children }: Filtered) {
  const { query } = route.value;
  return (
    <div class="stack">
      <search class="filters">
        <Text label="Search" type="search" value={query.get("q") ?? ""} onInput={(q) => setQuery({ q })} placeholder={hint} />
        <Select label="State" value={query.get("phase") ?? ""} onChange={(phase) => setQuery({ phase })} options={[["", "All"], ...phases.map((phase) => [phase, phase] as const)]} />
      </search>
      <p role="status" class="soft small filters-count">
        {shown === whole ? count(whole, one) : `${shown.toLocaleString("en")} of ${count(whole, one)}`}
      </p>
      {shown ? (
        children
      ) : (
        <Empty title={`No ${one} is like that`}>
          <p>Remove a search term.</p>
          <Button onClick={() => setQuery({ q: "", phase: "" })}>Show all {one}s</Button>
        </Empty>
      )}
    </div>
  );
}
