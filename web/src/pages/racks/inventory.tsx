// Loading an inventory: a file, what it would change, and then the change itself.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { asProblem, get, post, type Problem, put } from "../../api";
import type { InventoryLoaded } from "../../api-types";
import { go, to } from "../../route";
import { can } from "../../session";
import { attempt, Button, confirm, count, Failure, Field, toast } from "../../ui";
import { type Mistake, Mistakes } from "../../ui/mistakes";
import type { Document, Plan, PlanChange } from "./types";

export const EXAMPLE = `regions:
  - name: eu
    zones:
      - name: eu-1
        racks:
          - name: r1                # no dash: a node is called RACK-BLADE
            location: hall 2
            pdus: [{name: pdu1, ports: 10}, {name: pdu2, ports: 10}]
            tors: [{name: tor1, ports: 8}]
            blades: {count: 8, cpus: 16, memory: 64GiB, disk: 500GiB}
          - name: r2
            location: hall 2
            pdus: [{name: pdu1, ports: 10}, {name: pdu2, ports: 10}]
            tors: [{name: tor1, ports: 8}]
            blades: {count: 8, cpus: 16, memory: 64GiB, disk: 500GiB}
`;

/** The present inventory, to be written to a file. */
async function present(): Promise<string> {
  const { regions, racks } = await get<Document>("/v1/inventory");
  return `${JSON.stringify({ regions, racks }, null, 2)}\n`;
}

export async function exported(): Promise<void> {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([await present()], { type: "application/json" }));
  link.download = "inventory.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

interface Planned {
  document: Document;
  plan: Plan;
}

export function Loading() {
  const [text, setText] = useState("");
  const [file, setFile] = useState("inventory");
  const [planned, setPlanned] = useState<Planned | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  /** The text has unsaved edits. */
  const [typed, setTyped] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  const result = useRef<HTMLHeadingElement>(null);
  const mistakes = useMemo(() => (problem?.status === 400 ? found(problem.detail, file) : []), [problem]);
  // Next to or below the text it would not be seen.
  useEffect(() => {
    if (!planned) return;
    result.current?.focus({ preventScroll: true });
    result.current?.scrollIntoView({ block: "start" });
  }, [planned]);
  const edit = (next: string, name = file): void => {
    setText(next);
    setFile(name);
    setTyped(false);
    setPlanned(null);
    setProblem(null);
  };
  /** Put another text in its place. False: what is written there is kept. */
  const replace = async (name: string, read: () => string | Promise<string>): Promise<boolean> => {
    const question = { title: "Replace what you have written?", text: `The text below gives way to ${name}. It is kept nowhere else.`, action: "Replace it", danger: true };
    if (typed && text.trim() && !(await confirm(question))) return false;
    await attempt(async () => edit(await read(), name));
    return true;
  };
  const plan = async (): Promise<void> => {
    setProblem(null);
    setPlanned(null);
    try {
      const document = await post<Document>("/v1/inventory/read", { text, file });
      const { regions, racks } = document;
      setPlanned({ document: { regions, racks }, plan: await post<Plan>("/v1/inventory/plan", { regions, racks }) });
    } catch (error) {
      setProblem(asProblem(error));
    }
  };
  const load = async ({ document, plan: agreed }: Planned): Promise<void> => {
    const gone = agreed.changes.filter((change) => change.what === "remove").length;
    if (gone && !(await confirm({ title: "Load this inventory?", text: `${count(gone, "record")} will be removed. What runs on nodes is not touched.`, action: "Load it", danger: true }))) return;
    try {
      const done = await put<InventoryLoaded>("/v1/inventory", { ...document, agreed: agreed.digest });
      toast(`Loaded: ${done.added} added, ${done.changed} changed, ${done.removed} removed`);
      go(to("racks"));
    } catch (error) {
      setProblem(asProblem(error));
      setPlanned(null);
    }
  };
  if (!can("modify_inventory")) {
    return (
      <div class="note warn">
        <p>Loading an inventory takes the right modify_inventory and the membership *, which your account does not have both. An administrator can give them to you.</p>
      </div>
    );
  }
  return (
    <div class="two racks-load">
      <section class="panel stack" aria-label="The file">
        <p>
          An inventory says what stands in the datacenter: racks, and in each its pdus, tors and blades, with the cables between them. The file says all there is: what it does not have is
          removed.
        </p>
        <Field label="Inventory file" hint="YAML or JSON; hostler inventory show -o yaml writes one.">
          {(named) => (
            <input
              {...named}
              type="file"
              accept=".yaml,.yml,.json,application/json,application/yaml"
              onChange={async (event) => {
                const input = event.currentTarget;
                const chosen = input.files?.[0];
                if (chosen && !(await replace(chosen.name, () => chosen.text()))) input.value = "";
              }}
            />
          )}
        </Field>
        <div class="row">
          <Button small onClick={() => replace("example.yaml", () => EXAMPLE)}>
            Start from an example (YAML)
          </Button>
          <Button small onClick={() => replace("inventory.json", present)}>
            Start from what there is (JSON)
          </Button>
        </div>
        <Field label="What it says" hint="YAML or JSON">
          {(named) => (
            <textarea
              {...named}
              ref={area}
              class="mono"
              rows={10}
              spellcheck={false}
              autocapitalize="off"
              value={text}
              aria-invalid={mistakes.length > 0}
              onInput={(event) => {
                edit(event.currentTarget.value);
                setTyped(true);
              }}
            />
          )}
        </Field>
        {mistakes.length > 0 && (
          <Mistakes title={count(mistakes.length, "mistake")} of={mistakes} area={area}>
            <p>Nothing was changed. Put it right in the text, and look again at what would change.</p>
          </Mistakes>
        )}
        {problem && !mistakes.length && <Failure error={problem} focus />}
        <div class="row">
          <Button primary disabled={!text.trim()} onClick={plan}>
            Show what would change
          </Button>
          <a class="button" href={to("racks")}>
            Back to the floor
          </a>
        </div>
      </section>
      <section class="panel stack" aria-label="What would change" aria-live="polite">
        <h2 ref={result} tabIndex={-1}>
          What would change
        </h2>
        {planned ? <Diff plan={planned.plan} load={() => load(planned)} /> : <p class="soft">Nothing is written before you have seen it here and agreed.</p>}
      </section>
    </div>
  );
}

/** The mistakes that the server found: `FILE:LINE: PLACE: WHAT`, one per line. */
function found(detail: string, file: string): Mistake[] {
  return detail.split("\n").map((text) => {
    const told = text.startsWith(`${file}:`) ? text.slice(file.length + 1).trim() : text;
    const [, line = "0", rest = told] = /^(\d+): (.*)$/.exec(told) ?? [];
    const [, place = "", what = rest] = /^([^\s:]+): (.*)$/.exec(rest) ?? [];
    return { place, line: Number(line), what };
  });
}

const SIGNS: Record<string, string> = { add: "+", change: "~", remove: "−" };
const WORDS: Record<string, string> = { add: "added", change: "changed", remove: "removed" };

interface Line {
  what: PlanChange["what"];
  text: string;
}

/** What is alike, and follows each other, is one line: eight blades of a rack that are added. */
function diffLines(changes: readonly PlanChange[]): Line[] {
  const lines: (Line & { level: string; rack: string; fields: string; names: string[] })[] = [];
  for (const { what, level, name, fields } of changes) {
    const [rack = "", part = ""] = name.split("/");
    const told = fields.map((one) => `${one.field} ${one.old || "nothing"} → ${one.new || "nothing"}`).join(", ");
    const last = lines.at(-1);
    if (level === "blade" && last?.level === level && last.what === what && last.rack === rack && last.fields === told) last.names.push(part);
    else lines.push({ what, text: `${level} ${name}`, level, rack, fields: told, names: [part] });
  }
  return lines.map(({ what, text, names, rack, fields }) => {
    const several = names.length > 1 ? `${names.length} blades of ${rack} (${names[0]} to ${names.at(-1)})` : text;
    return { what, text: what === "change" && fields ? `${several}: ${fields}` : several };
  });
}

const LONGEST = 500;

function Diff({ plan, load }: { plan: Plan; load: () => Promise<void> }) {
  const lines = diffLines(plan.changes);
  const many = (what: PlanChange["what"]): string => `${plan.changes.filter((change) => change.what === what).length} ${WORDS[what]}`;
  if (!plan.digest && !plan.refused.length) return <p>Nothing: the inventory is as the file says.</p>;
  return (
    <>
      <p class="number">
        {many("add")}, {many("change")}, {many("remove")}
      </p>
      {plan.refused.map((text) => (
        <p class="note bad" key={text}>
          {text}
        </p>
      ))}
      {plan.notes.map((text) => (
        <p class="note warn" key={text}>
          {text}
        </p>
      ))}
      <ol class="racks-diff mono">
        {lines.slice(0, LONGEST).map((line, i) => (
          <li key={i} class={line.what}>
            <span aria-hidden="true">{SIGNS[line.what]}</span> <span class="unseen">{WORDS[line.what]}: </span>
            {line.text}
          </li>
        ))}
      </ol>
      {lines.length > LONGEST && <p class="soft">and {count(lines.length - LONGEST, "line")} more</p>}
      {plan.refused.length ? (
        <p class="soft">It cannot be loaded like this.</p>
      ) : (
        <div>
          <Button primary onClick={load}>
            Load it
          </Button>
        </div>
      )}
    </>
  );
}
