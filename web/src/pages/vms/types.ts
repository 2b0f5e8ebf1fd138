// Machines as the API returns them (docs/api.md).
import type { VmRow as Row, VmView } from "../../api-types";

export type {
  Affinity,
  ImageList as Images,
  ImageView as Image,
  QuotaView as Quota,
  TicketView as Ticket,
  TraceView as Trace,
  VmSpec as Spec,
  VmView as Vm,
  Why,
} from "../../api-types";
export type Phase = VmView["phase"];
export type Labels = VmView["labels"];

export const PHASES = ["pending", "placed", "creating", "starting", "running", "paused", "stopping", "stopped", "failed", "deleting", "moving", "silent", "unknown"] as const satisfies readonly Phase[];

export interface VmRow extends Row {
  /** Whether its agent saw it available last, however silent its node is now; undefined: not known. Only the page has it. */
  ready?: boolean | undefined;
}
