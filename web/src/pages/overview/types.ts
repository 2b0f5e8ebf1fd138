// What GET /v1/overview answers.
import type { Overview } from "../../api-types";

export type {
  BlueprintAtWork as AtWork,
  Concern,
  LeaderSeen as Leader,
  Overview,
  ReplicaSeen as Replica,
  StoreSeen as Store,
  TakeoverView as Takeover,
} from "../../api-types";
export type Counts = Overview["vms"];
