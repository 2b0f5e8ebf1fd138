// Causes and effects: the log of a simulation as trees. An entry that names its cause is placed under it; any other
// hangs under the last thing that happened to what it is about, and is marked as a guess. What only goes on (a machine that is created, started
// and runs) is one line.
import { baseOf, thing } from "../../objects";
import type { Told } from "./types";

export interface Happening {
  key: string;
  kind: string;
  /** When it began, in virtual seconds. */
  at: number;
  /** For people: "blade r1/b3", "machine acme/web/www". */
  subject: string;
  link: string | null;
  text: string;
  /** What became of it, one after the other. */
  steps: { at: number; text: string }[];
  children: Happening[];
  /** The log does not name its cause: its position is only likely. */
  guess: boolean;
}

/** Said by the control plane in its log, or by the scenario of itself: told elsewhere as well. */
const SKIPPED = new Set(["told", "asked", "done", "endpoint", "placed", "taken"]);
/** Signs of life, and their end: of the blade's doing. */
const AWAKE = new Set(["silent", "returned", "joined"]);
const ROOTS = new Set(["fault", "lifted", "repair"]);

export function grown(log: readonly Told[], parents: ReadonlyMap<string, string>): Happening[] {
  return new Grower(parents).grow(log);
}

/** A fault or repair by an operator. */
export const wasDone = (one: Happening): boolean => ROOTS.has(one.kind);

class Grower {
  private readonly byId = new Map<string, Happening>();
  private readonly last = new Map<string, Happening>();
  private readonly names = new Map<string, string>();
  private readonly roots: Happening[] = [];
  private readonly repairs: Happening[] = [];

  constructor(private readonly parents: ReadonlyMap<string, string>) {}

  grow(log: readonly Told[]): Happening[] {
    for (const one of log) {
      const told = / is assigned (\S+\/\S+\/\S+)$/.exec(one.text);
      if (told?.[1]) this.names.set(one.component, told[1]);
    }
    for (const one of log) if (!SKIPPED.has(one.kind)) this.take(one);
    return this.roots.map(pruned).filter((one): one is Happening => one !== null);
  }

  private take(one: Told): void {
    const before = this.goesOn(one);
    if (before) {
      before.steps.push({ at: one.at, text: this.worded(one) });
      return;
    }
    const made = this.made(one);
    const parent = ROOTS.has(one.kind) ? null : this.parentOf(one);
    made.guess = Boolean(parent) && parent !== this.causeOf(one);
    (parent?.children ?? this.roots).push(made);
    if (one.id) this.byId.set(one.id, made);
    if (one.kind === "lifted") this.byId.set(one.text.split(":")[0] ?? "", made);
    if (one.kind === "repair") this.repairs.push(made);
    else if (one.kind !== "fault" && one.kind !== "lifted") this.remember(one, made);
  }

  private remember(one: Told, made: Happening): void {
    if (one.kind === "decision") return;
    this.last.set(one.component, made);
    const slice = /^slice (\S+?)#/.exec(one.component);
    if (slice?.[1]) this.last.set(`slice ${baseOf(slice[1])}`, made);
  }

  /** The line that this is one more step of. */
  private goesOn(one: Told): Happening | undefined {
    const before = this.last.get(one.component);
    if (!before) return undefined;
    if (one.kind === "killed" || one.kind === "started") return before;
    if (before.kind !== one.kind) return undefined;
    if (one.kind === "slice") return placeOf(one.text) === placeOf(before.text) && !one.text.startsWith("gone") ? before : undefined;
    return one.cause ? undefined : before;
  }

  private parentOf(one: Told): Happening | undefined {
    const about = one.kind === "decision" ? subjectOf(one.component) : one.component;
    if (one.kind === "decision" && about.startsWith("node ") && this.last.has(about)) return this.last.get(about);
    if (AWAKE.has(one.kind) || (one.kind === "node" && !one.cause)) return this.bladeOf(about) ?? this.last.get(about);
    return this.causeOf(one) ?? this.last.get(about) ?? this.bladeOf(about);
  }

  /** What led to it, as it says itself. */
  private causeOf(one: Told): Happening | undefined {
    const named = one.cause ? (this.byId.get(one.cause) ?? this.last.get(one.cause) ?? this.repairOf(one.cause)) : undefined;
    return named ?? this.byId.get(this.parents.get(one.id) ?? "");
  }

  /** What becomes of a node comes from its blade. */
  private bladeOf(about: string): Happening | undefined {
    const node = /^node (.+?)-(.+)$/.exec(about);
    return node ? this.last.get(`${node[1]}/${node[2]}`) : undefined;
  }

  private repairOf(cause: string): Happening | undefined {
    return this.repairs.findLast((one) => cause.endsWith(one.key.split(" ")[1]?.replaceAll("/", "~") ?? "\0"));
  }

  private made(one: Told): Happening {
    const { words, link } = this.named(one);
    return { key: `${one.number} ${one.component}`, kind: one.kind, at: one.at, subject: words, link, text: this.worded(one), steps: [], children: [], guess: false };
  }

  private named(one: Told): { words: string; link: string | null } {
    const hardware = /^[^/\s]+\/[^/\s]+$/.exec(one.component);
    if (hardware && !one.component.startsWith("/")) return { words: one.component, link: thing(`rack/${one.component.split(":")[0]}`).link };
    const id = /(?:^vm |\/vms\/.*\/)(\S+)$/.exec(one.component)?.[1];
    const name = id && this.names.get(`vm ${id}`);
    if (name) return thing(`vm/${name}`);
    const slice = /^slice (\S+?)#(\d+)$/.exec(one.component);
    if (slice) return { words: `slice ${slice[1]} #${slice[2]}`, link: thing(`slice/${slice[1]}`).link };
    return thing(one.component);
  }

  private worded(one: Told): string {
    if (one.kind === "killed") return "its agent has ended";
    if (one.kind === "started") return "its agent has started";
    if (one.kind === "decision") {
      const [, actor = "", what = "", why = ""] = /^([^:]+): ([^:]+): (.*)$/s.exec(one.text) ?? [];
      return why ? `${what === "moved" ? "next step: " : ""}${why} (${actor})` : one.text;
    }
    if (one.kind === "fault" || one.kind === "lifted") return one.text.replace(/^(fault-\d+): /, "$1, ");
    return one.text;
  }
}

/** What a key is about, as the log calls it: `/hostler/v1/members/r1-b1` → "node r1-b1". */
function subjectOf(key: string): string {
  const found = thing(key);
  return found.kind === "vm" ? `vm ${key.split("/").pop()}` : `${found.kind} ${found.name}`;
}

const placeOf = (text: string): string => / (?:on|from) (\S+?)(?::|$)/.exec(text)?.[1] ?? "";

/** Without decisions whose effects all appear as the next step of another entry. */
function pruned(one: Happening): Happening | null {
  const children = one.children.map(pruned).filter((child): child is Happening => child !== null);
  if (one.kind === "decision" && !children.length && one.text.startsWith("next step: ")) return null;
  return { ...one, children };
}

/** All of it in one line: "load → loading → active on r2-b3". */
export function line(one: Happening): string {
  const texts = [one.text, ...one.steps.map((step) => step.text)];
  const place = placeOf(one.text);
  const ending = place ? ` on ${place}` : "\0";
  return texts.map((text, i) => (i < texts.length - 1 && text.endsWith(ending) ? text.slice(0, -ending.length) : text)).join(" → ");
}

/** The first lines of it, with their positions unchanged. */
export function cut(trees: readonly Happening[], lines: number): Happening[] {
  let left = lines;
  const taken = (one: Happening): Happening[] => {
    if (left <= 0) return [];
    left -= 1;
    return [{ ...one, children: one.children.flatMap(taken) }];
  };
  return trees.flatMap(taken);
}

/** How many lines that is. */
export const size = (one: Happening): number => 1 + one.children.reduce((sum, child) => sum + size(child), 0);
