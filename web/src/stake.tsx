// What is given up with a node, for the question that is asked before: machines, disks and snapshots, by name.
import type { ComponentChildren } from "preact";
import { at, get, type Page, withQuery } from "./api";
import type { RetainedPage, RetainedView, VmRowPage } from "./api-types";
import type { Vm, VmRow } from "./pages/vms/types";
import { count, mib } from "./ui";

/** A machine that is out of service and is kept with its disk and snapshots. */
export type Retained = RetainedView;

/** Machines that are named; of the others it is said how many they are. */
const NAMED = 20;

const snapshotsText = (names: string[]): string => (names.length ? `snapshots ${names.join(", ")}` : "no snapshots");

export const ownerOf = (one: Retained): string => `${one.org}/${one.project}/${one.vm_name || one.vm}`;

/** The disk and the snapshots of a retained machine, in words. */
export function keptText(one: Retained): string {
  const size = one.disk_bytes ? ` (${mib(Math.ceil(one.disk_bytes / 2 ** 20))})` : "";
  return `the disk${size} ${one.node}/${one.name}, ${snapshotsText(one.snapshots)}`;
}

export async function retainedOn(node: string): Promise<Retained[]> {
  return (await get<RetainedPage>("/v1/retained")).items.filter((one) => one.node.toLowerCase() === node.toLowerCase());
}

/** The machines of a node, each with its disk and snapshots. `many`: how many the node has, seen or not. */
export async function machinesOn(node: string, many: number): Promise<ComponentChildren> {
  if (many === 0) return null;
  const rows: VmRow[] = [];
  let after: string | null = null;
  do {
    const page: Page<VmRow> = await get<VmRowPage>(withQuery("/v1/vms", { brief: true, limit: 1000, after }));
    rows.push(...page.items.filter((row) => row.node === node));
    after = page.after;
  } while (after !== null);
  const named = await Promise.all(rows.slice(0, NAMED).map((row) => get<Vm>(at`/v1/orgs/${row.org}/projects/${row.project}/vms/${row.id}`)));
  const lines = named.map((vm) => {
    const taken = Object.keys(vm.snapshots).filter((name) => vm.snapshots[name] !== null).sort();
    return `${vm.org}/${vm.project}/${vm.name}: its disk${vm.spec.disk_gib ? ` of ${vm.spec.disk_gib} GiB` : ""}, ${snapshotsText(taken)}`;
  });
  if (rows.length > NAMED) lines.push(`${count(rows.length - NAMED, "more machine")}, with their disks and snapshots`);
  if (many > rows.length) lines.push(`${count(many - rows.length, "more machine")} of projects that you do not see, with their disks`);
  return <Stake lines={lines} />;
}

export function Stake({ lines }: { lines: string[] }) {
  return (
    <ul class="stake" aria-label="What is given up">
      {lines.map((line) => (
        <li key={line}>{line}</li>
      ))}
    </ul>
  );
}
