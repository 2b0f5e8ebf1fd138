// What GET /v1/overview answers.
import type { Overview } from "../../api-types";

export type {
  BlueprintAtWork as AtWork,
  Concern,
  LeaderStatus as Leader,
  Overview,
  ReplicaStatus as Replica,
  StoreStatus as Store,
  TakeoverView as Takeover,
} from "../../api-types";
export type Counts = Overview["vms"];
