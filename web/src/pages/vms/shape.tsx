// Another size, other labels, another name: what is not touched follows the machine, and is not sent.
import { useState } from "preact/hooks";
import { asProblem, get, patch, Problem } from "../../api";
import { Button, Check, Failure, Form, Text, toast } from "../../ui";
import type { One } from "./detail";
import { durationOf, fieldOf, labelsOf, labelsText, wholeOf } from "./input";
import type { Vm } from "./types";

const TITLES = { name: "Name", cpus: "Cores", memory_mib: "Memory in MiB", disk_gib: "Disk in GiB", labels: "Labels", expires_in: "Delete it after" };
type Name = keyof typeof TITLES;
type Values = Record<Name, string>;
/** What was typed, and what the machine had when that began. */
type Touched = Partial<Record<Name, { mine: string; from: string }>>;

const NAMES = Object.keys(TITLES) as Name[];
/** The control plane writes to the record as well: then it is read and compared once more. */
const TRIES = 5;

const valuesOf = (vm: Vm): Values => ({
  name: vm.name,
  cpus: String(vm.spec.cpus),
  memory_mib: String(vm.spec.memory_mib),
  disk_gib: String(vm.spec.disk_gib),
  labels: labelsText(vm.labels),
  expires_in: vm.expires_at ? new Date(vm.expires_at * 1000).toLocaleString("en-GB") : "",
});

/** What a text stands for. A string is what is wrong with it, but for a name. */
const READ: Record<Name, (text: string) => unknown> = {
  name: (text) => text,
  cpus: (text) => wholeOf(text, 1),
  memory_mib: (text) => wholeOf(text, 1),
  disk_gib: (text) => wholeOf(text, 0),
  labels: labelsOf,
  expires_in: durationOf,
};

/** Fields that this user edited and another user changed. */
const clashesOf = (touched: Touched, now: Values): Name[] => NAMES.filter((name) => touched[name] && touched[name].from !== now[name] && touched[name].mine !== now[name]);

export function Shape({ vm, path, reload }: One) {
  const [touched, setTouched] = useState<Touched>({});
  const [problem, setProblem] = useState<Problem | null>(null);
  const now = valuesOf(vm);
  const clashes = clashesOf(touched, now);
  const valueOf = (name: Name): string => touched[name]?.mine ?? now[name];
  const set = (name: Name, mine: string): void => setTouched((before) => ({ ...before, [name]: { mine, from: before[name]?.from ?? now[name] } }));
  const forget = (names: Name[]): void => setTouched((before) => Object.fromEntries(Object.entries(before).filter(([name]) => !names.includes(name as Name))));
  const wrong = (name: Name): string | null => {
    if (problem && fieldOf(problem) === name) return problem.detail;
    const read = touched[name] && name !== "name" ? READ[name](touched[name].mine) : null;
    return typeof read === "string" ? read : null;
  };
  const ready = !clashes.length && NAMES.every((name) => name === "name" || !touched[name] || typeof READ[name](touched[name].mine) !== "string");
  /** null: another user changed it first, and nothing was sent. */
  const sent = async (): Promise<Vm | null> => {
    for (let tried = 1; ; tried += 1) {
      const found = await get<Vm>(path);
      const there = valuesOf(found);
      if (clashesOf(touched, there).length) return null;
      const differs = NAMES.filter((name) => touched[name] && touched[name].mine !== there[name]);
      if (!differs.length) return found;
      const body = Object.fromEntries(differs.map((name) => [name, READ[name](touched[name]?.mine ?? "")]));
      try {
        return await patch<Vm>(path, body, { ifMatch: found.revision });
      } catch (error) {
        if (asProblem(error).status !== 412 || tried >= TRIES) throw error;
      }
    }
  };
  const send = async (): Promise<void> => {
    try {
      const changed = await sent();
      setProblem(null);
      await reload();
      if (!changed) return;
      forget(NAMES);
      toast(changed.at_next_boot.length ? `Changed. At its next boot: ${changed.at_next_boot.join(", ")}.` : "Changed.");
    } catch (error) {
      setProblem(asProblem(error));
    }
  };
  const field = (name: Name) => ({ label: TITLES[name], value: valueOf(name), onInput: (text: string) => set(name, text), wrong: wrong(name) });
  return (
    <section class="panel" aria-labelledby="vms-shape">
      <h2 id="vms-shape">Size and labels</h2>
      <Form onSubmit={send}>
        <Text {...field("name")} required />
        <Text {...field("cpus")} type="number" min={1} hint="From its next boot." />
        <Text {...field("memory_mib")} type="number" min={1} hint="From its next boot." />
        <Text {...field("disk_gib")} type="number" min={0} hint="It may only grow." />
        <Text {...field("labels")} />
        <Check label="Leave when it expires as it is" checked={!touched.expires_in} onChange={(keep) => (keep ? forget(["expires_in"]) : set("expires_in", ""))} />
        {touched.expires_in && <Text {...field("expires_in")} placeholder="never" hint="From now: 30m, 2h, 1d; empty: never" />}
        {problem && <Failure error={problem} />}
        {clashes.length > 0 && (
          <div class="note warn stack" role="alert">
            <p>
              <strong>Another user changed this record after you opened it. Which values do you want to keep?</strong>
            </p>
            <ul>
              {clashes.map((name) => (
                <li key={name}>
                  {TITLES[name]}: it was {touched[name]?.from || "nothing"}, is {now[name] || "nothing"} now, and you wrote {touched[name]?.mine || "nothing"}.
                </li>
              ))}
            </ul>
            <div class="row">
              <Button onClick={() => forget(clashes)}>Take what is there now</Button>
              <Button onClick={() => setTouched((before) => Object.fromEntries(Object.entries(before).map(([name, one]) => [name, { ...one, from: now[name as Name] }])))}>Keep what I wrote</Button>
            </div>
          </div>
        )}
        <div>
          <Button submit primary disabled={!ready}>
            Change
          </Button>
        </div>
      </Form>
    </section>
  );
}
