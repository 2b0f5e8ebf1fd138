// Blueprints, slices and workloads as the API returns them (docs/api.md).
import type { BlueprintRead as Read, BlueprintView as View, RevisionView, SliceSpec as Spec } from "../../api-types";

export type {
  ArtifactView as Artifact,
  BlueprintCalls,
  BlueprintFault as Fault,
  BlueprintPhase as Phase,
  BlueprintPlan,
  BlueprintStatus,
  EndpointView,
  InstanceView as WorkloadInstance,
  Reason,
  RolloutVerb as Order,
  RolloutView as Rollout,
  SliceInstanceView as SliceInstance,
  SlicePlan,
  SliceState,
  SliceStatus,
  SliceView,
  VersionCalls,
  WorkloadView as Workload,
} from "../../api-types";

/** A slice of a blueprint. The server leaves out fields that have their default. */
export type SliceSpec = Partial<Spec> & Pick<Spec, "artifact" | "instances">;
type WithSlices<T> = Omit<T, "slices"> & { slices: SliceSpec[] };
export type BlueprintRead = WithSlices<Read>;
export type BlueprintView = WithSlices<View>;
export type Revision = WithSlices<RevisionView>;
