// Racks, nodes and simulations as the API returns them, as far as this page uses them.

export type Standing = "on_duty" | "out_of_use" | "draining" | "joining" | "silent" | "off" | "out_for_repair" | "drained" | "left" | "no_node";
export type Condition = "operational" | "not_in_service" | "burn_in" | "out_for_repair" | "retiring" | "retired";
export const CONDITIONS: readonly (readonly [Condition, string])[] = [
  ["operational", "operational"],
  ["not_in_service", "not in service"],
  ["burn_in", "burn-in"],
  ["out_for_repair", "out for repair"],
  ["retiring", "retiring"],
  ["retired", "retired"],
];

export interface FloorFeed {
  name: string;
  enabled: boolean;
  condition: Condition;
}

export interface FloorRack {
  name: string;
  region: string;
  zone: string;
  location: string;
  enabled: boolean;
  condition: Condition;
  objection: string;
  pdus: FloorFeed[];
  tors: FloorFeed[];
  blades: string[];
  states: Standing[];
  vms: number[];
}

export interface FloorView {
  racks: FloorRack[];
  nodes: string[];
  states: Standing[];
  vms: number[];
  simulation: boolean;
  revision: number;
}

export interface Capacity {
  cpus: number;
  memory_mib: number;
  disk_gib: number;
  network_mbps: number;
}

export interface Port {
  wired: boolean;
  item: string | null;
}

export interface Feed {
  name: string;
  enabled: boolean;
  condition: Condition;
  ports: Record<string, Port>;
  revision: number;
}

/** How far a burn-in or a retirement is. */
export interface Flow {
  condition: Condition;
  step: string;
  reason: string;
  since: number;
  step_at: number;
  until: number | null;
}

export interface Blade {
  name: string;
  node: string;
  enabled: boolean;
  condition: Condition;
  capacity: Capacity;
  labels: Record<string, string>;
  pdus: string[];
  tors: string[];
  objection: string;
  lifecycle: string | null;
  alive: boolean;
  used: Capacity;
  vms: number;
  machines: string[];
  flow: Flow | null;
  revision: number;
}

export interface RackDetail {
  rack: FloorRack & { on_duty: number; used: Capacity; capacity: Capacity; vms: number; flow: Flow | null; revision: number };
  pdus: Feed[];
  tors: Feed[];
  blades: Blade[];
  unlisted: string[];
}

export interface Node {
  node: string;
  lifecycle: string;
  alive: boolean;
  capacity: Capacity;
  used: Capacity;
  vms: number;
  labels: Record<string, string>;
  address: string;
  driver: string;
  fences: boolean;
  moves: boolean;
  facts: Record<string, string>;
  refuses: string;
  objection: string;
  drain: string;
  off: { by: string; at: number } | null;
  registered_at: number;
  revision: number;
}

export interface Slice {
  node: string;
  artifact: string;
  state: string;
  instances: { instance: number; state: string; ready: boolean; since: number; restarts: number; why: string }[];
}

export type { Trace, WhyView as Why } from "../../why";

export interface Document {
  regions: Record<string, unknown>[];
  racks: Record<string, unknown>[];
}

export interface PlanChange {
  what: "add" | "change" | "remove";
  level: string;
  name: string;
  fields: { field: string; old: string; new: string }[];
}

export interface Plan {
  changes: PlanChange[];
  refused: string[];
  notes: string[];
  digest: string;
}

export type Mode = "manual" | "measured" | "no_wait";

export interface Fault {
  id: string;
  fault: string;
  on: string;
  text: string;
}

export interface Proposal {
  id: string;
  kind: string;
  component: string;
  text: string;
  reason: string;
  automatic: boolean;
}

export interface Sim {
  name: string;
  about: string;
  seed: number;
  mode: Mode;
  rate: number;
  epoch: number;
  now: number;
  wall: number;
  steps: { id: number }[];
  next_at: number | null;
  auto_repair: boolean;
  faults: Fault[];
  proposals: Proposal[];
  racks: { name: string; blades: number; working: number; amiss: { component: string; state: string }[] }[];
  replicas: { name: string; runs: boolean; leads: boolean }[];
  log: number;
  timeline: number;
  failures: string[];
}

export interface FaultKind {
  fault: string;
  about: string;
  places: string[];
  numbers: { name: string; default: string }[];
}

export interface Told {
  number: number;
  at: number;
  kind: string;
  component: string;
  text: string;
  cause: string;
  id: string;
}
