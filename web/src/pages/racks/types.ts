// Racks, nodes and simulations as the API returns them.
import type { Condition, InventoryDocument } from "../../api-types";

export type {
  BladeView as Blade,
  Capacity,
  Condition,
  FaultKind,
  FaultView as Fault,
  FeedView as Feed,
  FloorFeed,
  FloorRack,
  FloorView,
  HardwareFlow as Flow,
  InventoryChange as PlanChange,
  InventoryPlan as Plan,
  Mode,
  NodeView as Node,
  ProposalView as Proposal,
  RackDetail,
  SimLogEntry as Told,
  SimView as Sim,
  SliceView as Slice,
  Standing,
  TraceView as Trace,
  WhyView as Why,
} from "../../api-types";

/** An inventory as it is read and sent. */
export type Document = Pick<InventoryDocument, "regions" | "racks">;

export const CONDITIONS: readonly (readonly [Condition, string])[] = [
  ["operational", "operational"],
  ["not_in_service", "not in service"],
  ["burn_in", "burn-in"],
  ["out_for_repair", "out for repair"],
  ["retiring", "retiring"],
  ["retired", "retired"],
];
