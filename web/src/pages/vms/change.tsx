// Another size, other labels; another node.
import { useEffect, useState } from "preact/hooks";
import { all, post } from "../../api";
import type { NodeView as Node } from "../../api-types";
import { attempt, Button, Check, confirm, Empty, Form, Select } from "../../ui";
import type { One } from "./detail";
import { Shape } from "./shape";

export function ChangeTab(one: One) {
  return (
    <div class="grid">
      <Shape {...one} />
      <MoveForm {...one} />
    </div>
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
    const taken = Object.keys(vm.snapshots).sort();
    const snapshots = taken.length ? `Its snapshots cannot come along, and it is not moved while it has them: ${taken.join(", ")}.` : "It has no snapshots.";
    const text = <p>{vm.name} is brought to {to}{stop ? "; it may be stopped for that" : " as it runs"}. {snapshots}</p>;
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
