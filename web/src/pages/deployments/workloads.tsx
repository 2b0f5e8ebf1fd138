// Workloads: the state of each, the requested number of instances, and the reasons for their placement.
import { useEffect, useState } from "preact/hooks";
import { all, at, changeShown, get, patch, withQuery } from "../../api";
import type { InstancePage } from "../../api-types";
import { useLive } from "../../live";
import { nodeLink } from "../../objects";
import { route, to } from "../../route";
import { can, sees } from "../../session";
import { attempt, Busy, Button, confirm, Copy, count, Empty, Failure, Form, mib, State, Table, Text } from "../../ui";
import { chosen, Filtered } from "./filter";
import type { Workload, WorkloadInstance } from "./types";
import { WORKLOAD_LOOK } from "./words";

const SHOWN = 100;
const place = (name: string): string => to("deployments", [], { tab: "workloads", workload: name });

export function Workloads() {
  const [items, setItems] = useState<Workload[] | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const reload = async (): Promise<void> => {
    try {
      setItems(await all<Workload>("/v1/workloads"));
      setFailure(null);
    } catch (error) {
      setFailure(error);
    }
  };
  useLive(["vm", "handle"], reload);
  const name = route.value.query.get("workload");
  if (failure && !items) return <Failure error={failure} again={reload} />;
  if (!items) return <Busy>Looking for workloads</Busy>;
  if (name) {
    const found = items.find((one) => one.name.toLowerCase() === name.toLowerCase());
    return found ? <One key={found.name} workload={found} reload={reload} /> : <p class="note">There is no workload {name}, or it is not for you to see.</p>;
  }
  if (!items.length) {
    return (
      <Empty title="No workload yet">
        <p>A workload is a number of machines of one shape: Hostler keeps as many as you say, and replaces them when the shape changes. Write its file (docs/workloads.md), then:</p>
        <Copy text="hostler workload apply web.yaml --wait" />
      </Empty>
    );
  }
  const shown = chosen(items, (one) => [one.name, `${one.org}/${one.project}`]);
  return (
    <Filtered phases={Object.keys(WORKLOAD_LOOK)} hint="Name or project" shown={shown.length} whole={items.length} one="workload">
      <Table caption="Workloads" head={["Workload", "State", "Ready", "Shape", "Project", "Why"]}>
        {shown.map((one) => (
          <tr key={one.name}>
            <th scope="row">
              <a href={place(one.name)}>{one.name}</a>
            </th>
            <td>
              <State look={WORKLOAD_LOOK[one.phase]}>{one.phase}</State>
            </td>
            <td class="deployments-number">
              {one.ready}/{one.instances}
            </td>
            <td>
              {count(one.spec.cpus, "CPU")}, {mib(one.spec.memory_mib)}
            </td>
            <td>
              {one.org}/{one.project}
            </td>
            <td class="deployments-why">{one.detail}</td>
          </tr>
        ))}
      </Table>
    </Filtered>
  );
}

/** What counted; what was said of the other nodes opens. */
function Reasons({ one }: { one: WorkloadInstance }) {
  const told = one.reasons.map((reason) => `${reason.subject}: ${reason.why}`);
  if (told.length < 2) return <>{one.detail || told[0] || ""}</>;
  return (
    <details>
      <summary>{one.detail || told[0]}</summary>
      <ul>
        {told.map((text) => (
          <li key={text}>{text}</li>
        ))}
      </ul>
    </details>
  );
}

function One({ workload, reload }: { workload: Workload; reload: () => Promise<void> }) {
  const [page, setPage] = useState<WorkloadInstance[] | null>(null);
  const [after, setAfter] = useState<string | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const [wanted, setWanted] = useState(String(workload.instances));
  useEffect(() => setWanted(String(workload.instances)), [workload.instances]);
  const load = async (from: string | null = null): Promise<void> => {
    try {
      const found = await get<InstancePage>(withQuery(at`/v1/workloads/${workload.name}/instances`, { limit: SHOWN, after: from }));
      setPage((before) => [...(from ? (before ?? []) : []), ...found.items]);
      setAfter(found.after);
      setFailure(null);
    } catch (error) {
      setFailure(error);
    }
  };
  useLive(["vm", "handle"], () => load());
  const may = can("modify_workloads") && sees(workload.org, workload.project) && workload.phase !== "deleting";
  const change = (body: { instances?: number; enabled?: boolean }, done: string): Promise<unknown> =>
    attempt(async () => {
      const path = at`/v1/workloads/${workload.name}`;
      await changeShown(workload, ["instances", "enabled", "created_at"], path, (extra) => patch(path, body, extra));
      await reload();
    }, done);
  const scale = async (): Promise<void> => {
    const instances = Number(wanted);
    const fewer = workload.instances - instances;
    if (fewer > 0) {
      const text = `${count(fewer, "machine")} with the highest numbers, and their disks, are removed.`;
      if (!(await confirm({ title: `Scale ${workload.name} down to ${instances}`, text, action: `Remove ${count(fewer, "machine")}`, danger: true }))) return;
    }
    await change({ instances }, `${workload.name}: ${count(instances, "instance")} requested.`);
  };
  const turn = async (): Promise<void> => {
    const text = `All ${count(workload.instances, "machine")} are switched off. They stay, with their disks.`;
    if (workload.enabled && !(await confirm({ title: `Switch ${workload.name} off`, text, action: "Switch off", danger: true }))) return;
    await change({ enabled: !workload.enabled }, workload.enabled ? `${workload.name} is switched off.` : `${workload.name} is switched on.`);
  };
  const number = Number(wanted);
  return (
    <div class="stack">
      <div class="row apart">
        <h2>
          <a href={to("deployments", [], { tab: "workloads" })}>Workloads</a> / {workload.name}
        </h2>
        <State look={WORKLOAD_LOOK[workload.phase]}>
          {workload.phase}, {workload.ready} of {count(workload.instances, "instance")} ready
        </State>
      </div>
      {workload.detail && <p class={`note ${workload.phase === "pending" ? "warn" : ""}`}>{workload.detail}</p>}
      {may && (
        <Form class="panel row deployments-scale" onSubmit={scale}>
          <Text label="Instances" type="number" min={0} max={1_000_000} value={wanted} onInput={setWanted} />
          <Button submit primary disabled={!Number.isInteger(number) || wanted === "" || number < 0 || number === workload.instances}>
            Scale
          </Button>
          <Button danger={workload.enabled} onClick={turn}>
            {workload.enabled ? "Switch off" : "Switch on"}
          </Button>
        </Form>
      )}
      {Boolean(failure) && <Failure error={failure} again={() => load()} />}
      {!page && !failure && <Busy>Looking for instances</Busy>}
      {page && (
        <Table caption={`Instances of ${workload.name}`} head={["Instance", "State", "Node", "Machine", "Why"]}>
          {page.map((one) => (
            <tr key={one.instance}>
              <th scope="row">{one.instance}</th>
              <td>
                <State look={one.ready ? "good" : one.leaving ? "idle" : one.node ? "busy" : "warn"}>
                  {one.leaving ? "leaving" : one.phase}
                  {!one.updated && !one.leaving && ", older shape"}
                </State>
              </td>
              <td>{one.node ? <a href={nodeLink(one.node)}>{one.node}</a> : "none"}</td>
              <td>{one.vm ? <a href={to("vms", [workload.org, workload.project, one.vm])}>{one.name}</a> : "none"}</td>
              <td class="deployments-why">
                <Reasons one={one} />
              </td>
            </tr>
          ))}
        </Table>
      )}
      {after !== null && <Button onClick={() => load(after)}>Show more</Button>}
    </div>
  );
}
