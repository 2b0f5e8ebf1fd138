// Machines that are out of service and are kept with their disks: listed, restored, deleted.
import { useCallback, useEffect, useState } from "preact/hooks";
import { at, del, get, post } from "../../api";
import type { RetainedPage } from "../../api-types";
import { on } from "../../live";
import { to } from "../../route";
import { can } from "../../session";
import { keptText, ownerOf, type Retained, Stake } from "../../stake";
import { Actions, Ago, attempt, Button, confirm, Dialog, Failure, Form, Left, Table, Text, toast } from "../../ui";
import type { Vm } from "./types";

const pathOf = (one: Retained): string => at`/v1/retained/${one.node}/${one.name}`;
/** Milliseconds until the list is read again after something happened to a machine, and while a node deletes a disk. */
const SOON = 700;
const AGAIN = 2000;

/** Nothing, while none are retained. */
export function RetainedMachines() {
  const [found, setFound] = useState<Retained[]>([]);
  const [restoring, setRestoring] = useState<Retained | null>(null);
  const read = useCallback(
    () =>
      get<RetainedPage>("/v1/retained").then(
        (page) => setFound(page.items),
        () => {}, // the list above says what is wrong
      ),
    [],
  );
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    void read();
    const stop = on(["vm", "handle", "node"], () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        void read();
      }, SOON);
    });
    return () => {
      clearTimeout(timer);
      stop();
    };
  }, [read]);
  const deleting = found.some((one) => one.deleting);
  useEffect(() => {
    const timer = deleting ? setInterval(() => void read(), AGAIN) : undefined;
    return () => clearInterval(timer);
  }, [deleting, read]);
  if (found.length === 0) return null;
  const changes = can("modify_workloads");
  const deletes = can("manage_accounts");
  return (
    <section>
      <h2>Retained machines</h2>
      <p class="soft small">They are out of service and are kept with their disks and snapshots.</p>
      <Table caption="Retained machines" head={["Machine", "Project", "Node and name", "Retained", "Kept for", ...(changes || deletes ? ["Actions"] : [])]}>
        {found.map((each) => (
          <tr key={`${each.node}/${each.name}`}>
            <td>{each.vm_name || each.vm}</td>
            <td>{`${each.org}/${each.project}`}</td>
            <td class="mono">{`${each.node}/${each.name}`}</td>
            <td>
              <Ago at={each.retained_at} />
            </td>
            <td>{each.lost ? `cannot be restored: ${each.lost}` : each.deleting ? "being deleted" : each.kept_for ? `as long as ${each.kept_for} has no newer disk` : <Left at={each.until} over="until the next collection" />}</td>
            {(changes || deletes) && (
              <td>
                {!each.deleting && (
                  <div class="row">
                    {changes && !each.lost && (
                      <Button small label={`Restore ${each.name}`} onClick={() => setRestoring(each)}>
                        Restore
                      </Button>
                    )}
                    {deletes && (
                      <Button small danger label={`Delete ${each.name}`} onClick={() => remove(each, read)}>
                        Delete
                      </Button>
                    )}
                  </div>
                )}
              </td>
            )}
          </tr>
        ))}
      </Table>
      {restoring && <RestoreForm one={restoring} onClose={() => setRestoring(null)} />}
    </section>
  );
}

async function remove(one: Retained, read: () => Promise<unknown>): Promise<void> {
  const what = one.vm_name || one.vm;
  const text = (
    <>
      <p>{one.lost ? `The record goes; the disk stays where it is: ${one.lost}.` : "This is deleted for good. It cannot be undone."}</p>
      <Stake lines={[`${ownerOf(one)}: ${keptText(one)}`]} />
      {one.kept_for && <p>{one.kept_for} has no newer disk.</p>}
      {!one.lost && !one.alive && <p>Node {one.node} cannot be reached: it deletes the disk when it is back.</p>}
    </>
  );
  const title = one.lost ? `Delete the record of ${what}?` : `Delete the disk of ${what}?`;
  if (!(await confirm({ title, text, action: "Delete", danger: true, typed: what }))) return;
  await attempt(() => del(pathOf(one)), one.lost ? `The record of ${what} is deleted.` : `The disk of ${what} is being deleted.`);
  await read();
}

/** Back into its machine, or as a new one. */
export function RestoreForm({ one, onClose }: { one: Retained; onClose: () => void }) {
  const [name, setName] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const was = one.vm_name || one.vm;
  const restore = async (): Promise<void> => {
    setProblem(null);
    try {
      const vm = await post<Vm>(`${pathOf(one)}/restore`, name ? { name } : {});
      toast(`${vm.name} gets its disk from ${one.node}/${one.name}.`);
      onClose();
      location.hash = to("vms", [vm.org, vm.project, vm.id]);
    } catch (error) {
      setProblem(error);
    }
  };
  return (
    <Dialog title={`Restore ${was}?`} onClose={onClose}>
      <Form onSubmit={restore}>
        {problem !== null && <Failure error={problem} />}
        <p>
          It runs on node {one.node} again, with {keptText(one)}.
        </p>
        <Text label="Name of a new machine" value={name} onInput={(text) => setName(text.trim())} hint={`Empty: ${was} itself returns to this disk, if it has no newer one.`} focus />
        <Actions onClose={onClose} action="Restore" />
      </Form>
    </Dialog>
  );
}
