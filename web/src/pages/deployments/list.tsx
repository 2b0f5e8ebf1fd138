import { useState } from "preact/hooks";
import { all, at, get } from "../../api";
import { useLive } from "../../live";
import { to } from "../../route";
import { deploys } from "../../session";
import { Busy, count, Empty, Failure, State, Table } from "../../ui";
import { chosen, Filtered } from "./filter";
import type { BlueprintStatus, BlueprintView } from "./types";
import { goingOn, PHASE_LOOK } from "./words";

/** Of how many that are not ready it is said slice by slice what is going on. */
const LOOKED_AT = 25;

export function List() {
  const [views, setViews] = useState<BlueprintView[] | null>(null);
  const [busy, setBusy] = useState<Record<string, string>>({});
  const [failure, setFailure] = useState<unknown>(null);
  const reload = async (): Promise<void> => {
    try {
      const found = await all<BlueprintView>("/v1/blueprints");
      setViews(found);
      setFailure(null);
      const moving = found.filter((view) => view.phase !== "ready").slice(0, LOOKED_AT);
      const told = await Promise.all(moving.map((view) => get<BlueprintStatus>(at`/v1/blueprints/${view.name}/status`).catch(() => null)));
      setBusy(Object.fromEntries(told.flatMap((status) => (status ? [[status.name, sentence(status)]] : []))));
    } catch (error) {
      setFailure(error);
    }
  };
  useLive(["blueprint", "deployment", "slice"], reload);
  if (failure && !views) return <Failure error={failure} again={reload} />;
  if (!views) return <Busy>Looking for blueprints</Busy>;
  if (!views.length) return <First />;
  const shown = chosen(views, (view) => [view.name, ...view.slices.map((slice) => slice.artifact)]);
  return (
    <>
      {Boolean(failure) && <Failure error={failure} again={reload} />}
      <Filtered phases={Object.keys(PHASE_LOOK)} hint="Name or artifact" shown={shown.length} whole={views.length} one="blueprint">
        <Table caption="Blueprints" head={["Blueprint", "State", "Ready", "Revision", "Slices", "What is going on"]}>
          {shown.map((view) => (
            <tr key={view.name}>
              <th scope="row">
                <a href={to("deployments", [view.name])}>{view.name}</a>
              </th>
              <td>
                <State look={PHASE_LOOK[view.phase]}>{view.phase}</State>
              </td>
              <td class="deployments-number">
                {view.ready}/{view.instances}
              </td>
              <td class="deployments-number">{view.number || "unknown"}</td>
              <td>{count(view.slices.length, "slice")}</td>
              <td class="deployments-why">{view.phase === "ready" ? view.detail : busy[view.name] || view.detail}</td>
            </tr>
          ))}
        </Table>
      </Filtered>
    </>
  );
}

function sentence(status: BlueprintStatus): string {
  const told = status.slices.filter((slice) => slice.phase !== "ready").map((slice) => `${slice.base}: ${goingOn(slice)}`);
  return told.slice(0, 3).join("; ") + (told.length > 3 ? ` and ${told.length - 3} more` : "");
}

function First() {
  return (
    <Empty title="No blueprint yet">
      <p>
        A blueprint names the slices to run, with the version and the number of instances of each. Hostler puts them onto nodes, replaces what dies, and changes
        versions without a gap.
      </p>
      {deploys.value ? (
        <>
          <p>
            First publish an artifact (<code>hostler slice new greeting --group org.example</code>, then <code>hostler slice push</code>, or{" "}
            <a href={to("deployments", [], { tab: "artifacts" })}>a wheel from this page</a>), then apply a blueprint that names it.
          </p>
          <a class="button primary" href={to("deployments", [], { view: "apply" })}>
            Apply a blueprint
          </a>
        </>
      ) : (
        <p>Deploying takes the right modify_workloads and the membership *. Ask an administrator for them, or to deploy for you.</p>
      )}
    </Empty>
  );
}
