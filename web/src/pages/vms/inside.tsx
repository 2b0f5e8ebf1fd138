// What goes in and out of a machine: its terminal, what its console said, and its snapshots.
import { useRef, useState } from "preact/hooks";
import { at, del, post } from "../../api";
import { setQuery, route, to } from "../../route";
import { can } from "../../session";
import { Terminal } from "../../terminal";
import { Ago, attempt, Button, confirm, Empty, Form, Select, State, Table, Text } from "../../ui";
import { Log } from "../../ui/log";
import type { One } from "./detail";
import type { Ticket } from "./types";

export function TerminalTab({ vm, path }: One) {
  const [door, setDoor] = useState(route.value.query.get("door") ?? "console");
  const open = (kind: string) => async (): Promise<string> => {
    const ticket = await post<Ticket>(`${path}/tickets`, { door: kind });
    return `${ticket.url}?ticket=${encodeURIComponent(ticket.ticket)}`;
  };
  // What it said last stays to be read when it goes off.
  const ever = useRef(false);
  ever.current ||= vm.phase === "running";
  if (!ever.current) return <Empty title="It does not run">{vm.power === "off" ? <p>Start it; then there is something to type at.</p> : <p>It is {vm.phase}; wait until it runs.</p>}</Empty>;
  const choose = (next: string): void => {
    setDoor(next);
    setQuery({ door: next === "console" ? "" : next });
  };
  return (
    <div class="stack">
      <Select
        label="What to open"
        value={door}
        onChange={choose}
        options={[["console", "Serial port"], ["shell", "Shell by SSH"]]}
        hint={door === "console" ? "The serial console: everyone who has it open sees the same output and can type. The tiny image has a shell; other images ask for a password." : "The server logs in for you, if the machine lets its key in."}
      />
      {door === "console" ? (
        <Terminal key="console" protocol="bytes" label={`Serial port of ${vm.name}`} open={open("console")} shut="It did not open: the machine may be off, or its node cannot be reached." />
      ) : (
        <Terminal key="shell" protocol="json" label={`Shell in ${vm.name}`} open={open("shell")} shut="It did not open: the machine may be off, or its node cannot be reached." />
      )}
    </div>
  );
}

export function LogTab({ path }: One) {
  return <Log path={`${path}/log?tail=262144`} label="Console log" about="What its serial port said last" class="vms-log" />;
}

export function SnapshotsTab({ vm, path, reload }: One) {
  const [name, setName] = useState("");
  const changes = can("modify_workloads");
  const names = Object.keys(vm.snapshots);
  const take = async (): Promise<void> => {
    if (await attempt(() => post(`${path}/snapshot`, { name }), `Snapshot ${name} is taken.`)) setName("");
    await reload();
  };
  const restore = async (which: string): Promise<void> => {
    const text = <p>{vm.name} is stopped and goes back to {which}; if that has its memory, it goes on where it was then. What its disk has now, and no snapshot, is lost.</p>;
    if (!(await confirm({ title: `Restore ${which}?`, text, action: "Restore", danger: true }))) return;
    await attempt(() => post(`${path}/restore`, { name: which }), `${vm.name} goes back to ${which}.`);
    await reload();
  };
  const drop = async (which: string): Promise<void> => {
    const text = <p>The snapshot {which} of {vm.name} is deleted. That cannot be undone.</p>;
    if (!(await confirm({ title: `Delete snapshot ${which}?`, text, action: "Delete snapshot", danger: true }))) return;
    await attempt(() => del(path + at`/snapshots/${which}`), `Snapshot ${which} is deleted.`);
    await reload();
  };
  return (
    <div class="stack">
      {changes && (
        <Form class="row vms-snapshot" onSubmit={take}>
          <Text label="New snapshot" value={name} onInput={setName} required placeholder="before-upgrade" />
          <Button submit primary disabled={!name}>
            Take snapshot
          </Button>
        </Form>
      )}
      {names.length === 0 ? (
        <Empty title="It has no snapshot">
          <p>A snapshot keeps its disk as it is at an instant and, of one that runs, its memory as well (not at Hetzner): one can go back to it, and it goes on where it was. A new machine that is made of it has the same disk, and boots.</p>
        </Empty>
      ) : (
        <Table caption="Snapshots" head={["Name", "State", "Taken", ...(changes ? ["Actions"] : [])]}>
          {names.map((which) => {
            const taken = vm.snapshots[which];
            return (
              <tr key={which}>
                <th scope="row">{which}</th>
                <td>{taken ? <State look={taken.state === "ready" ? "good" : "bad"}>{taken.state}</State> : <State look="busy">being taken</State>} {taken?.detail}</td>
                <td>{taken ? <Ago at={taken.taken_at} /> : ""}</td>
                {changes && (
                  <td>
                    <span class="row">
                      {taken?.state === "ready" && <Button small label={`Restore ${which}`} onClick={() => restore(which)}>Restore</Button>}
                      {taken?.state === "ready" && (
                        <a class="button small" href={to("vms", ["new"], { project: `${vm.org}/${vm.project}`, origin: vm.id, snapshot: which })} aria-label={`New machine of ${which}`}>
                          New machine…
                        </a>
                      )}
                      <Button small danger label={`Delete snapshot ${which}`} onClick={() => drop(which)}>Delete</Button>
                    </span>
                  </td>
                )}
              </tr>
            );
          })}
        </Table>
      )}
    </div>
  );
}
