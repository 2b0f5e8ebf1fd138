// What was applied, by whom and when; two of them side by side; and the way back.
import { useEffect, useState } from "preact/hooks";
import { asProblem, at, get, type Page, post } from "../../api";
import { useLive } from "../../live";
import { go, to } from "../../route";
import { deploys } from "../../session";
import { Ago, Busy, Button, Dialog, Failure, Select, Table, toast } from "../../ui";
import { Difference, Plan, Refused } from "./plan";
import type { BlueprintPlan, Revision, SliceSpec } from "./types";

const SHOWN = 100;

/** `gone`: there is no such blueprint any more, or there never was. */
export function History({ name, revision, gone = false }: { name: string; revision: number; gone?: boolean }) {
  const [items, setItems] = useState<Revision[] | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const [opened, setOpened] = useState<number | null>(null);
  const reload = (): Promise<void> => listed(name).then((found) => {
    setItems(found);
    setFailure(null);
  }, setFailure);
  useLive(["blueprint"], reload);
  useEffect(() => void reload(), [revision]);
  const never = failure !== null && asProblem(failure).status === 404;
  if (never || (gone && items?.length === 0)) {
    return !gone ? null : (
      <p class="note" role="status">
        There is no blueprint {name}, and nothing was applied under that name.
      </p>
    );
  }
  if (failure) return <Failure error={failure} />;
  if (!items) return <Busy>Looking at what was applied</Busy>;
  return (
    <div class="deployments-history stack">
      {gone && (
        <p class="note" role="status">
          There is no blueprint {name} any more: it was deleted. What was applied under that name is kept, and can be rolled back to.
        </p>
      )}
      <Table caption={`What was applied to ${name}`} head={["Revision", "When", "By", "What", "Compare"]}>
        {items.map((one, i) => (
          <tr key={one.number}>
            <th scope="row">
              {one.number}
              {one.current && !one.deleted && " (present)"}
            </th>
            <td>
              <Ago at={one.at} />
            </td>
            <td>{one.by}</td>
            <td>{said(one, items[i + 1])}</td>
            <td>
              {items.length > 1 && (
                <Button small onClick={() => setOpened(one.number)} label={`Look at revision ${one.number}`}>
                  Look
                </Button>
              )}
            </td>
          </tr>
        ))}
      </Table>
      {opened !== null && <RollBack name={name} first={opened} onClose={() => setOpened(null)} />}
    </div>
  );
}

const listed = (name: string): Promise<Revision[]> => get<Page<Revision>>(at`/v1/blueprints/${name}/history` + `?limit=${SHOWN}`).then((page) => page.items);

function said(one: Revision, before: Revision | undefined): string {
  if (one.deleted) return "deleted";
  const told = Object.entries(one.artifacts)
    .filter(([artifact, n]) => !before || before.deleted || before.artifacts[artifact] !== n)
    .map(([artifact, n]) => `${artifact} × ${n}`);
  const gone = before && !before.deleted ? Object.keys(before.artifacts).filter((artifact) => !(artifact in one.artifacts)) : [];
  const what = [...told, ...gone.map((artifact) => `no ${artifact}`)].slice(0, 6).join(", ") || "settings or strategy";
  return one.rollback_to ? `back to revision ${one.rollback_to}: ${what}` : what;
}

/** Which revision, what it says otherwise, what going back to it would do; and then doing it. */
export function RollBack({ name, first, onClose }: { name: string; first?: number; onClose: () => void }) {
  const [items, setItems] = useState<Revision[] | null>(null);
  const [target, setTarget] = useState(first ?? 0);
  const [against, setAgainst] = useState(0);
  const [sides, setSides] = useState<{ before: SliceSpec[]; after: SliceSpec[]; plan: BlueprintPlan | null } | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  useEffect(() => {
    listed(name).then((found) => {
      setItems(found);
      const present = found[0]?.number ?? 0;
      setAgainst(present);
      if (!first) setTarget(found.find((one) => one.number !== present && !one.deleted)?.number ?? 0);
    }, setFailure);
  }, [name]);
  useEffect(() => {
    if (!target || !against) return;
    let ended = false;
    setSides(null);
    setFailure(null);
    compared(name, against, target).then((found) => !ended && setSides(found), (error) => !ended && setFailure(error));
    return () => {
      ended = true;
    };
  }, [name, target, against]);
  const roll = async (): Promise<void> => {
    if (!sides?.plan) return;
    setFailure(null);
    try {
      await post(at`/v1/blueprints/${name}/rollback`, { to: target }, { ifMatch: sides.plan.revision });
    } catch (error) {
      setFailure(error);
      return;
    }
    onClose();
    toast(`${name} goes back to revision ${target}.`);
    go(to("deployments", [name]));
  };
  const present = items?.[0];
  const options = (items ?? []).map((one) => [String(one.number), `${one.number}${one.number === present?.number ? " (present)" : ""}: ${said(one, undefined)}`] as const);
  const here = target === present?.number && !present?.deleted;
  return (
    <Dialog title={`Revisions of ${name}`} onClose={onClose} wide>
      {!items && !failure && <Busy>Looking at what was applied</Busy>}
      {items && !options.length && <p>Nothing was ever applied.</p>}
      {items && items.length < 2 && !present?.deleted && <p>There is only one revision: nothing to go back to.</p>}
      {items && (items.length > 1 || present?.deleted) && (
        <div class="stack">
          <div class="grid">
            <Select label="Revision" value={String(target)} onChange={(value) => setTarget(Number(value))} options={options} />
            <Select label="Compared with" value={String(against)} onChange={(value) => setAgainst(Number(value))} options={options} />
          </div>
          {Boolean(failure) && <Refused error={failure} />}
          {!sides && !failure && <Busy>Comparing</Busy>}
          {sides && (
            <>
              <h3>What revision {target} says otherwise</h3>
              <Difference before={sides.before} after={sides.after} label={`From revision ${against} to revision ${target}`} />
              {sides.plan && !here && (
                <>
                  <h3>What going back would do</h3>
                  <Plan plan={sides.plan} rolls />
                  <p class="soft small">Going back is an apply like any other: it is a new revision, and can itself be gone back from.</p>
                </>
              )}
            </>
          )}
        </div>
      )}
      <div class="dialog-actions">
        <Button onClick={onClose}>Close</Button>
        {deploys.value && sides?.plan && !here && !sides.plan.refused.length && (
          <Button danger onClick={roll}>
            Roll back to revision {target}
          </Button>
        )}
      </div>
    </Dialog>
  );
}

async function compared(name: string, against: number, target: number): Promise<{ before: SliceSpec[]; after: SliceSpec[]; plan: BlueprintPlan | null }> {
  const [before, after] = await Promise.all([against, target].map((number) => get<Revision>(at`/v1/blueprints/${name}/history/${number}`)));
  const slices = after?.slices ?? [];
  const plan = deploys.value ? await post<BlueprintPlan>(at`/v1/blueprints/${name}/plan`, { slices }) : null;
  return { before: before?.slices ?? [], after: slices, plan };
}
