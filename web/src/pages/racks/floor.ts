// What stands where, and how it is: read as a whole once, then rack by rack as things change.
import { computed, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { asProblem, get, type Problem, withQuery } from "../../api";
import { type Change, on, onReset } from "../../live";
import { feedLook, hardwareLook, type LookName, NAMES } from "./look";
import { sim } from "./simulation";
import type { FloorFeed, FloorRack, FloorView } from "./types";

export interface Rack extends FloorRack {
  /** By which events and addresses name it. */
  key: string;
  /** Nodes that are in no rack stand together, as if in one. */
  loose: boolean;
}

export interface Floor {
  racks: Rack[];
  simulation: boolean;
}

export const floor = signal<Floor | null>(null);
export const failed = signal<Problem | null>(null);
/** Racks by their keys. */
export const byKey = computed(() => new Map((floor.value?.racks ?? []).map((rack) => [rack.key, rack])));

/** As the server folds names, for all but the rarest letters. */
export const fold = (name: string): string => name.normalize("NFC").toLowerCase();

const dressed = (rack: FloorRack): Rack => ({ ...rack, key: fold(rack.name), loose: false });

function loose(view: FloorView): Rack[] {
  if (!view.nodes.length) return [];
  const place = { region: "", zone: "", location: "", enabled: true, condition: "operational", objection: "" } as const;
  return [{ ...place, name: "Not in the inventory", key: "", loose: true, pdus: [], tors: [], blades: view.nodes, states: view.states, vms: view.vms }];
}

async function readAll(): Promise<void> {
  const view = await get<FloorView>("/v1/inventory/summary");
  floor.value = { racks: [...view.racks.map(dressed), ...loose(view)], simulation: view.simulation };
}

async function readSome(keys: string[]): Promise<void> {
  const before = floor.value;
  if (!before) return readAll();
  const view = await get<FloorView>(withQuery("/v1/inventory/summary", { racks: keys.join("/") }));
  const news = new Map(view.racks.map((rack) => [fold(rack.name), dressed(rack)]));
  const known = byKey.value;
  // Racks that came or went stand elsewhere: the whole is read again.
  if (keys.some((key) => news.has(key) !== known.has(key)) || view.racks.some((rack) => moved(known.get(fold(rack.name)), rack))) return readAll();
  floor.value = { ...before, racks: before.racks.map((rack) => news.get(rack.key) ?? rack) };
}

const moved = (before: Rack | undefined, after: FloorRack): boolean => before?.region !== after.region || before.zone !== after.zone;

const KINDS = ["node", "alive", "handle", "rack", "blade", "pdu", "tor", "region", "zone"];
const MANY = 24;
const EVERY = 500;
/** Corrects counts of machines whose events were missed. */
const WHOLE_EVERY = 60_000;

const ANYWHERE = "?";
/** Milliseconds until a change that may be anywhere is looked for: of a large floor, not for each machine. */
const soon = (): number => ((floor.peek()?.racks.length ?? 0) > 20 ? 10_000 : EVERY);

/** Where each machine was seen last: when it goes elsewhere, both racks have changed. */
const places = new Map<string, string>();

function touched(change: Change): string[] {
  const first = change.subject.split("/")[0] ?? "";
  switch (change.kind) {
    case "node":
    case "alive":
      return [rackOf(first)];
    case "handle": {
      const node = (change.record as { node?: string } | null)?.node ?? "";
      const before = places.get(change.subject);
      places.set(change.subject, node);
      // The previous node of a machine is unknown when its first event arrives.
      if (before === undefined) return [ANYWHERE, ...(node ? [rackOf(node)] : [])];
      return before === node ? [] : [before, node].filter(Boolean).map(rackOf);
    }
    case "region":
    case "zone":
      return [""];
    default:
      return [first];
  }
}

/** The rack of a node; empty: of none that is known. */
function rackOf(node: string): string {
  const key = node.slice(0, Math.max(0, node.indexOf("-")));
  return byKey.value.has(key) ? key : "";
}

/** Keep the floor up to date while the page is open. */
export function useFloor(): void {
  useEffect(() => {
    let dirty = new Set<string>([""]);
    let timer: ReturnType<typeof setTimeout> | undefined;
    let busy = false;
    let ended = false;
    const run = async (): Promise<void> => {
      if (busy || ended || !dirty.size) return;
      busy = true;
      const keys = [...dirty];
      dirty = new Set();
      try {
        await (keys.includes("") || keys.length > MANY ? readAll() : readSome(keys));
        failed.value = null;
      } catch (error) {
        failed.value = asProblem(error);
        dirty.add("");
      } finally {
        busy = false;
        timer = setTimeout(() => {
          timer = undefined;
          void run();
        }, failed.value ? 5000 : EVERY);
      }
    };
    let later: ReturnType<typeof setTimeout> | undefined;
    const mark = (keys: string[]): void => {
      for (const key of keys) if (key !== ANYWHERE) dirty.add(key);
      if (keys.includes(ANYWHERE)) {
        later ??= setTimeout(() => {
          later = undefined;
          mark([""]);
        }, soon());
      }
      if (dirty.size && timer === undefined && !busy) void run();
    };
    void run();
    const whole = setInterval(() => mark([""]), WHOLE_EVERY);
    const stops = [on(KINDS, (changes) => mark(changes.flatMap(touched))), onReset(() => mark([""]))];
    return () => {
      ended = true;
      clearTimeout(timer);
      clearTimeout(later);
      clearInterval(whole);
      for (const stop of stops) stop();
    };
  }, []);
}

/** States of simulated hardware that is not as it was when it was new, by component. */
export const faultyParts = computed(() => new Map((sim.value?.racks ?? []).flatMap((rack) => rack.amiss.map((one) => [one.component, one.state] as const))));

export const component = (rack: Rack, part: string): string => `${rack.key}/${fold(part)}`;

export function bladeLook(rack: Rack, index: number, broken: ReadonlyMap<string, string>): LookName {
  const state = rack.states[index] ?? "no_node";
  if (!broken.size) return state;
  return hardwareLook(broken.get(component(rack, rack.blades[index] ?? ""))) ?? state;
}

export interface Part {
  kind: "tor" | "blade" | "pdu";
  name: string;
  look: LookName;
  feed?: FloorFeed;
  index: number;
}

/** All that is in a rack, from the top: tors, blades, pdus. */
export function partsOf(rack: Rack): Part[] {
  const broken = faultyParts.value;
  const feed = (kind: "tor" | "pdu") => (one: FloorFeed, index: number): Part => ({
    kind,
    name: one.name,
    look: feedLook(one, broken.get(component(rack, one.name))),
    feed: one,
    index,
  });
  return [
    ...rack.tors.map(feed("tor")),
    ...rack.blades.map((name, index): Part => ({ kind: "blade", name, look: bladeLook(rack, index, broken), index })),
    ...rack.pdus.map(feed("pdu")),
  ];
}

export const partOf = (rack: Rack, name: string): Part | undefined => partsOf(rack).find((part) => fold(part.name) === fold(name));

/** How many blades look how. */
export const counts = computed(() => {
  const broken = faultyParts.value;
  const found = Object.fromEntries(NAMES.map((name) => [name, 0])) as Record<LookName, number>;
  for (const rack of floor.value?.racks ?? []) for (let i = 0; i < rack.blades.length; i += 1) found[bladeLook(rack, i, broken)] += 1;
  return found;
});

/** The id of a blade's node. */
export const nodeOf = (rack: Rack, blade: string): string => (rack.loose ? blade : `${rack.key}-${fold(blade)}`);
