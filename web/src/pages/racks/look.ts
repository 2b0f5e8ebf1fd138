// How a blade, pdu or tor looks from afar: a colour, a shape, a letter and a word. No two share a shape.
import type { FloorFeed, Standing } from "./types";

export type LookName = Standing | "no_power" | "no_network" | "faulted" | "booting";
export type Shape = "full" | "left" | "right" | "split" | "frame" | "flag" | "bars" | "ends" | "top" | "checks" | "line" | "dots" | "low" | "thin";

interface Look {
  word: string;
  letter: string;
  /** Of theme.css. */
  colour: "good" | "warn" | "bad" | "idle" | "accent";
  shape: Shape;
}

/** In the order of the legend: healthy states first, then those that need an operator. */
export const LOOKS: Record<LookName, Look> = {
  on_duty: { word: "On duty", letter: "✓", colour: "good", shape: "full" },
  joining: { word: "Joining", letter: "J", colour: "accent", shape: "left" },
  booting: { word: "Booting", letter: "B", colour: "accent", shape: "right" },
  draining: { word: "Draining", letter: "D", colour: "warn", shape: "split" },
  out_of_use: { word: "Out of use", letter: "U", colour: "idle", shape: "frame" },
  out_for_repair: { word: "Out for repair", letter: "R", colour: "warn", shape: "flag" },
  silent: { word: "Silent", letter: "S", colour: "bad", shape: "bars" },
  no_power: { word: "No power", letter: "P", colour: "bad", shape: "ends" },
  no_network: { word: "No network", letter: "N", colour: "bad", shape: "top" },
  faulted: { word: "Faulted", letter: "F", colour: "bad", shape: "checks" },
  off: { word: "Known to be off", letter: "O", colour: "idle", shape: "line" },
  drained: { word: "Drained", letter: "E", colour: "idle", shape: "dots" },
  left: { word: "Shut down", letter: "L", colour: "idle", shape: "low" },
  no_node: { word: "No agent yet", letter: "–", colour: "idle", shape: "thin" },
};
export const NAMES = Object.keys(LOOKS) as LookName[];

/** What simulated hardware says of itself; null: it is as it should be. */
export function hardwareLook(state: string | undefined): LookName | null {
  if (!state || state === "working") return null;
  if (state.startsWith("isolated") || state.startsWith("no uplink")) return "no_network";
  if (state.startsWith("off") || state.startsWith("no feed") || state.startsWith("no power")) return "no_power";
  if (state.startsWith("booting") || state.startsWith("powered") || state.startsWith("stopping")) return "booting";
  return "faulted";
}

export function feedLook(feed: FloorFeed, hardware: string | undefined): LookName {
  const found = hardwareLook(hardware);
  if (found) return found;
  if (feed.condition === "out_for_repair") return "out_for_repair";
  return feed.enabled && feed.condition === "operational" ? "on_duty" : "out_of_use";
}

/** Why a pdu or tor is as it is, in words. */
export function feedWord(feed: FloorFeed, hardware: string | undefined): string {
  const look = feedLook(feed, hardware);
  if (hardware) return words(hardware);
  return look === "on_duty" ? "Working" : !feed.enabled ? "Not enabled" : words(feed.condition);
}

/** Of a node: as the floor has it. */
export const lifeWord = (lifecycle: string): string => ({ DECOMMISSIONED: LOOKS.drained.word, SHUTTING_DOWN: LOOKS.left.word })[lifecycle] ?? words(lifecycle);

/** `out_for_repair` → "Out for repair"; `ON_DUTY` → "On duty". */
export function words(text: string): string {
  const plain = text.replaceAll("_", " ").toLowerCase();
  return plain.charAt(0).toUpperCase() + plain.slice(1);
}
