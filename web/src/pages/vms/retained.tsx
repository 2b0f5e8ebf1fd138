// Machines that are out of service and are kept with their disks.
import { useEffect, useState } from "preact/hooks";
import { get } from "../../api";
import { Ago, Left, Table } from "../../ui";

interface Retained {
  node: string;
  name: string;
  org: string;
  project: string;
  vm: string;
  vm_name: string;
  retained_at: number;
  until: number;
  kept_for: string;
  deleting: boolean;
}

/** Nothing, while none are retained. */
export function RetainedMachines() {
  const [found, setFound] = useState<Retained[]>([]);
  useEffect(() => {
    let gone = false;
    get<{ items: Retained[] }>("/v1/retained").then(
      (page) => {
        if (!gone) setFound(page.items);
      },
      () => {}, // the list above says what is wrong
    );
    return () => {
      gone = true;
    };
  }, []);
  if (found.length === 0) return null;
  return (
    <section>
      <h2>Retained machines</h2>
      <p class="soft small">
        They are out of service and are kept with their disks. <code>hostler vm retained restore NODE/NAME</code> brings one back.
      </p>
      <Table caption="Retained machines" head={["Machine", "Project", "Node and name", "Retained", "Kept for"]}>
        {found.map((each) => (
          <tr key={`${each.node}/${each.name}`}>
            <td>{each.vm_name || each.vm}</td>
            <td>{`${each.org}/${each.project}`}</td>
            <td class="mono">{`${each.node}/${each.name}`}</td>
            <td>
              <Ago at={each.retained_at} />
            </td>
            <td>{each.deleting ? "being deleted" : each.kept_for ? `as long as ${each.kept_for} has no newer disk` : <Left at={each.until} over="until the next collection" />}</td>
          </tr>
        ))}
      </Table>
    </section>
  );
}
