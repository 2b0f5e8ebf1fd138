// What is looked at: how close, where the keyboard is, what is open, what is searched for.
import { computed, effect, signal } from "@preact/signals";
import { get, at as path } from "../../api";
import { route, to } from "../../route";
import { byKey, floor, fold, type Part, partOf, partsOf, type Rack } from "./floor";
import type { Found, Plan } from "./layout";
import { type LookName, LOOKS } from "./look";
import type { RackDetail } from "./types";

/** A rack, or something in it (`part` empty: the rack itself). Folded. */
export interface Spot {
  rack: string;
  part: string;
}

/** Null: as close as all of it can be seen from. */
export const zoom = signal<number | null>(null);
export const cursor = signal<Spot | null>(null);
/** The keyboard is in the picture. */
export const keyed = signal(false);
export const hover = signal<Found | null>(null);

/** What is open, by the address. */
export const chosen = computed<Spot | null>(() => {
  const { parts, query } = route.value;
  const node = query.get("node");
  if (node) return { rack: "", part: fold(node) };
  if (!parts[0]) return null;
  const spot = { rack: fold(parts[0]), part: fold(parts[1] ?? "") };
  // A node may be called like a blade of a rack that is not in the inventory.
  const stray = `${spot.rack}-${spot.part}`;
  return !byKey.value.has(spot.rack) && byKey.value.get("")?.blades.includes(stray) ? { rack: "", part: stray } : spot;
});
export const only = computed<LookName | null>(() => {
  const state = route.value.query.get("state");
  return state && state in LOOKS ? (state as LookName) : null;
});
export const sought = computed(() => route.value.query.get("find") ?? "");

export interface Hit {
  rack: Rack;
  part: string;
}

const MOST = 200;

/** Racks and blades of that name, or node. Empty: nothing is searched for. */
export const hits = computed<Hit[]>(() => {
  const text = fold(sought.value.trim());
  if (!text) return [];
  const found: Hit[] = [];
  const take = (fits: (name: string) => boolean): void => {
    for (const rack of floor.value?.racks ?? []) {
      if (!rack.loose && fits(rack.key)) found.push({ rack, part: "" });
      for (const part of [...rack.blades, ...rack.pdus.map((one) => one.name), ...rack.tors.map((one) => one.name)]) {
        const name = fold(part);
        if (fits(`${rack.key}/${name}`) || fits(`${rack.key}-${name}`) || (rack.loose && fits(name))) found.push({ rack, part });
        if (found.length >= MOST) return;
      }
    }
  };
  take((name) => name === text);
  if (!found.length) take((name) => name.includes(text));
  return found;
});
export const marked = computed<ReadonlySet<string>>(() => new Set(hits.value.map(({ rack, part }) => (part ? `${rack.key}/${fold(part)}` : rack.key))));

/** The address of something on the floor; filter and search stay. */
export function address(rack: Rack | null, part = ""): string {
  const { state = "", find = "" } = Object.fromEntries(route.value.query) as { state?: string; find?: string };
  if (rack?.loose) return to("racks", [], { state, find, node: part });
  return to("racks", rack ? [rack.name, ...(part ? [part] : [])] : [], { state, find });
}

export function rackAt(spot: Spot | null): Rack | undefined {
  return spot ? byKey.value.get(spot.rack) : undefined;
}

export function partAt(spot: Spot | null): Part | undefined {
  const rack = rackAt(spot);
  return rack && spot?.part ? partOf(rack, spot.part) : undefined;
}

/** Where that is in the picture. */
export function foundAt(plan: Plan, spot: Spot | null): Found | null {
  if (!spot) return null;
  const cabinet = plan.cabinets.findIndex((one) => one.rack.key === spot.rack);
  if (cabinet < 0) return null;
  if (!spot.part) return { cabinet, kind: "rack", index: 0 };
  const part = partAt(spot);
  return part ? { cabinet, kind: part.kind, index: part.index } : { cabinet, kind: "rack", index: 0 };
}

export function spotAt(plan: Plan, found: Found): Spot {
  const rack = (plan.cabinets[found.cabinet] as Plan["cabinets"][number]).rack;
  const list = { rack: [], tor: rack.tors.map((one) => one.name), pdu: rack.pdus.map((one) => one.name), blade: rack.blades }[found.kind];
  return { rack: rack.key, part: fold(list[found.index] ?? "") };
}

/** The next blade in this direction; the same, where there is none. The letters go to what feeds the rack. */
export function stepped(plan: Plan, from: Spot | null, key: string): Spot | null {
  const here = from && plan.cabinets.findIndex((one) => one.rack.key === from.rack);
  const first = plan.cabinets[0];
  if (here === null || here < 0 || !from) return first ? { rack: first.rack.key, part: fold(first.rack.blades[0] ?? "") } : null;
  const cabinet = plan.cabinets[here] as Plan["cabinets"][number];
  const parts = partsOf(cabinet.rack);
  const place = parts.findIndex((part) => fold(part.name) === from.part);
  const { blades } = cabinet.rack;
  const blade = parts[place]?.kind === "blade" ? (parts[place]?.index ?? 0) : -1;
  const inside = (index: number): Spot => ({ rack: from.rack, part: fold(blades[Math.max(0, Math.min(blades.length - 1, index))] ?? "") });
  /** The next of its pdus or tors; after the last, the first. */
  const feed = (kind: "pdu" | "tor"): Spot => {
    const all = parts.filter((part) => part.kind === kind);
    const next = all[(all.findIndex((part) => fold(part.name) === from.part) + 1) % all.length];
    return next ? { rack: from.rack, part: fold(next.name) } : from;
  };
  const neighbour = (index: number): Spot => {
    const other = plan.cabinets[Math.max(0, Math.min(plan.cabinets.length - 1, index))] as Plan["cabinets"][number];
    return { rack: other.rack.key, part: fold(other.rack.blades[Math.min(Math.max(0, blade), other.rack.blades.length - 1)] ?? "") };
  };
  switch (key) {
    case "ArrowDown":
      return inside(blade + 1);
    case "ArrowUp":
      return inside(blade - 1);
    case "Home":
      return inside(0);
    case "End":
      return inside(blades.length - 1);
    case "ArrowRight":
      return neighbour(here + 1);
    case "ArrowLeft":
      return neighbour(here - 1);
    case "p":
      return feed("pdu");
    case "t":
      return feed("tor");
    default: {
      const row = plan.rows[cabinet.row + (key === "PageDown" ? 1 : -1)];
      if (!row) return from;
      let best = row.first;
      for (let i = row.first; i <= row.last; i += 1) {
        if (Math.abs((plan.cabinets[i]?.x ?? 0) - cabinet.x) < Math.abs((plan.cabinets[best]?.x ?? 0) - cabinet.x)) best = i;
      }
      return neighbour(best);
    }
  }
}

/** What is known of racks that were looked at closely, and of which state of the floor that is. */
const known = signal<ReadonlyMap<string, { of: Rack; detail: RackDetail }>>(new Map());
export const details = computed<ReadonlyMap<string, RackDetail>>(() => new Map([...known.value].map(([key, { detail }]) => [key, detail])));
const asked = new Map<string, Rack>();
const MOST_KNOWN = 60;

/** Have the cables and blades of a rack read, unless they are known as they are. */
export function look(key: string): void {
  const rack = byKey.value.get(key);
  if (!rack || rack.loose || known.value.get(key)?.of === rack || asked.get(key) === rack) return;
  asked.set(key, rack);
  void get<RackDetail>(path`/v1/racks/${rack.name}`).then(
    (detail) => {
      known.value = new Map([...[...known.value].filter(([other]) => other !== key).slice(-MOST_KNOWN), [key, { of: rack, detail }]]);
      if (asked.get(key) === rack) asked.delete(key);
    },
    () => asked.delete(key),
  );
}

/** What is open, and where the keyboard is, is known closely. */
effect(() => {
  for (const spot of [chosen.value, cursor.value]) if (spot && route.value.page === "racks") look(spot.rack);
});

/** The keyboard focus continues from the part that was opened last. */
let opened = "";
effect(() => {
  const spot = chosen.value;
  const now = spot ? `${spot.rack}/${spot.part}` : "";
  if (now === opened) return;
  opened = now;
  if (spot) cursor.value = spot;
});
