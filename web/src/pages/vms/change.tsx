// Another size, other labels, another node.
import { useEffect, useState } from "preact/hooks";
import { all, asProblem, patch, post, Problem } from "../../api";
import { attempt, Button, Check, confirm, Empty, Failure, Form, Select, Text, toast } from "../../ui";
import type { One } from "./detail";
import { durationOf, fieldOf, labelsOf, labelsText, wholeOf } from "./input";

interface Node {
  node: string;
  lifecycle: string;
  alive: boolean;
  driver: string;
  moves: boolean;
}

export function ChangeTab(one: One) {
  return (
    <div class="grid">
      <Shape {...one} />
      <MoveForm {...one} />
    </div>
  );
}

function Shape({ vm, path, reload }: One) {
  const [form, setForm] = useState({ name: vm.name, cpus: String(vm.spec.cpus), memory: String(vm.spec.memory_mib), disk: String(vm.spec.disk_gib), labels: labelsText(vm.labels), expires: "", keep: true });
  const [problem, setProblem] = useState<Problem | null>(null);
  const set = (change: Partial<typeof form>): void => setForm((before) => ({ ...before, ...change }));
  const cpus = wholeOf(form.cpus, 1);
  const memory_mib = wholeOf(form.memory, 1);
  const disk_gib = wholeOf(form.disk, 0);
  const labels = labelsOf(form.labels);
  const expires = durationOf(form.expires);
  const refused = problem && fieldOf(problem);
  const wrong = (field: string, value: unknown): string | null => (refused === field && problem ? problem.detail : typeof value === "string" ? value : null);
  const ready = [cpus, memory_mib, disk_gib, labels].every((one) => typeof one !== "string") && typeof expires !== "string";
  const send = async (): Promise<void> => {
    const body: Record<string, unknown> = { name: form.name, cpus, memory_mib, labels };
    if (disk_gib !== vm.spec.disk_gib) body["disk_gib"] = disk_gib;
    if (!form.keep) body["expires_in"] = expires;
    try {
      const now = await patch<One["vm"]>(path, body, { ifMatch: vm.revision });
      setProblem(null);
      toast(now.at_next_boot.length ? `Changed. At its next boot: ${now.at_next_boot.join(", ")}.` : "Changed.");
      await reload();
    } catch (error) {
      setProblem(asProblem(error));
    }
  };
  return (
    <section class="panel" aria-labelledby="vms-shape">
      <h2 id="vms-shape">Size and labels</h2>
      <Form onSubmit={send}>
        <Text label="Name" value={form.name} onInput={(name) => set({ name })} required wrong={wrong("name", 0)} />
        <Text label="Cores" type="number" min={1} value={form.cpus} onInput={(value) => set({ cpus: value })} wrong={wrong("cpus", cpus)} hint="From its next boot." />
        <Text label="Memory in MiB" type="number" min={1} value={form.memory} onInput={(memory) => set({ memory })} wrong={wrong("memory_mib", memory_mib)} hint="From its next boot." />
        <Text label="Disk in GiB" type="number" min={0} value={form.disk} onInput={(disk) => set({ disk })} wrong={wrong("disk_gib", disk_gib)} hint="It may only grow." />
        <Text label="Labels" value={form.labels} onInput={(value) => set({ labels: value })} wrong={wrong("labels", typeof labels === "string" ? labels : 0)} />
        <Check label="Leave when it expires as it is" checked={form.keep} onChange={(keep) => set({ keep })} />
        {!form.keep && <Text label="Delete it after" value={form.expires} onInput={(value) => set({ expires: value })} placeholder="never" hint="From now: 30m, 2h, 1d; empty: never" wrong={wrong("expires_in", expires)} />}
        {problem && <Failure error={problem} />}
        <div>
          <Button submit primary disabled={!ready}>
            Change
          </Button>
        </div>
      </Form>
    </section>
  );
}

function MoveForm({ vm, path, reload }: One) {
  const [nodes, setNodes] = useState<Node[] | null>(null);
  const [to, setTo] = useState("");
  const [stop, setStop] = useState(false);
  useEffect(() => {
    void attempt(async () => {
      const found = (await all<Node>("/v1/nodes")).filter((one) => one.alive && one.lifecycle === "ON_DUTY" && one.node !== vm.node);
      setNodes(found);
      setTo((before) => before || (found[0]?.node ?? ""));
    });
  }, [vm.node]);
  const under = vm.move !== null && vm.moved < vm.move.number;
  const move = async (): Promise<void> => {
    const text = <p>{vm.name} is brought to {to}{stop ? "; it may be stopped for that" : " as it runs"}. Its snapshots stay behind.</p>;
    if (!(await confirm({ title: `Move ${vm.name} to ${to}?`, text, action: "Move" }))) return;
    await attempt(() => post(`${path}/move`, { to, stop }), `${vm.name} moves to ${to}.`);
    await reload();
  };
  return (
    <section class="panel" aria-labelledby="vms-move">
      <h2 id="vms-move">Another node</h2>
      {under && <p role="status">It is on its way to {vm.move?.to}.</p>}
      {nodes?.length === 0 ? (
        <Empty title="There is no other node on duty" />
      ) : (
        <Form onSubmit={move}>
          <Select label="Move it to" value={to} onChange={setTo} options={(nodes ?? []).map((one) => one.node)} />
          <Check label="It may be stopped for that" checked={stop} onChange={setStop} hint="Where it cannot be moved as it runs." />
          <div>
            <Button submit disabled={!to}>
              Move
            </Button>
          </div>
        </Form>
      )}
    </section>
  );
}
