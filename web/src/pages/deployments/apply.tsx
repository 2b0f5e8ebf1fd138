// From a text to a plan, and from the plan to what runs.
import { useEffect, useRef, useState } from "preact/hooks";
import { at, post, put } from "../../api";
import { go, to } from "../../route";
import { deploys } from "../../session";
import { Button, Field, Form, Text, toast } from "../../ui";
import { Mistakes } from "../../ui/mistakes";
import { Difference, Plan, Refused } from "./plan";
import type { BlueprintPlan, BlueprintRead, BlueprintView, Fault, SliceSpec } from "./types";
import { asToml } from "./words";

const EXAMPLE = `# The slices to run, and the number of instances of each. Push the artifact first: hostler slice push
[[slices]]
artifact = "org.example:greeting:1.0.0"
instances = 3

# How a later version follows this one: a quarter of the calls first, and back if more than 1 % of them fail.
[slices.strategy]
type = "canary"
stages = [{ weight = 25, hold = 30.0 }, { weight = 50, hold = 30.0 }]
gate = { max_error_rate = 0.01, min_calls = 20 }
`;

interface Ready {
  name: string;
  slices: SliceSpec[];
  plan: BlueprintPlan;
  warnings: Fault[];
}

/** A new blueprint, or a change of one: then `of` is what it says now. */
export function Apply({ of }: { of?: BlueprintView }) {
  const [name, setName] = useState(of?.name ?? "");
  const [text, setText] = useState(of ? asToml(of.slices) : "");
  const [file, setFile] = useState("");
  const [faults, setFaults] = useState<Fault[]>([]);
  const [failure, setFailure] = useState<unknown>(null);
  const [ready, setReady] = useState<Ready | null>(null);
  const area = useRef<HTMLTextAreaElement>(null);
  const planned = useRef<HTMLHeadingElement>(null);
  // Below the text it would not be seen.
  useEffect(() => {
    planned.current?.focus({ preventScroll: true });
    planned.current?.scrollIntoView({ block: "start" });
  }, [ready]);
  if (!deploys.value) return <p class="note">Changing a blueprint takes the right modify_workloads and the membership *.</p>;
  const change = (value: string): void => {
    setText(value);
    setReady(null);
    setFaults([]);
    setFailure(null);
  };
  const look = async (): Promise<void> => {
    setReady(null);
    setFailure(null);
    try {
      const read = await post<BlueprintRead>("/v1/blueprint-files", { text, file });
      setFaults(read.faults);
      if (read.faults.length) return;
      const called = of?.name ?? (name.trim() || read.name || file.replace(/\.[^.]*$/, ""));
      if (!called) {
        setFaults([{ place: "name", line: 0, what: "say what the blueprint is called, here or in the file" }]);
        return;
      }
      setName(called);
      const plan = await post<BlueprintPlan>(at`/v1/blueprints/${called}/plan`, { slices: read.slices });
      setReady({ name: called, slices: read.slices, plan, warnings: read.warnings });
    } catch (error) {
      setFailure(error);
    }
  };
  const apply = async (): Promise<void> => {
    if (!ready) return;
    setFailure(null);
    try {
      await put(at`/v1/blueprints/${ready.name}`, { slices: ready.slices }, { ifMatch: ready.plan.revision });
    } catch (error) {
      setFailure(error);
      return;
    }
    toast(`${ready.name} was applied. It is followed here.`);
    go(to("deployments", [ready.name]));
  };
  return (
    <div class="stack">
      <Form class="panel stack" onSubmit={look}>
        <div class="grid">
          {!of && <Text label="Name" value={name} onInput={(value) => { setName(value); setReady(null); }} hint="Lower-case letters, digits and . _ -" placeholder="shop" />}
          <Field label="From a file" hint="TOML or JSON">
            {(named) => (
              <input
                {...named}
                type="file"
                accept=".toml,.json"
                onChange={async (event) => {
                  const chosen = event.currentTarget.files?.[0];
                  if (!chosen) return;
                  setFile(chosen.name);
                  change(await chosen.text());
                }}
              />
            )}
          </Field>
        </div>
        <Field label="Blueprint" hint="TOML or JSON, as in docs/deployments.md">
          {(named) => (
            <textarea
              {...named}
              ref={area}
              class="mono deployments-text"
              rows={10}
              spellcheck={false}
              autocapitalize="off"
              wrap="off"
              value={text}
              aria-invalid={faults.length > 0}
              onInput={(event) => {
                setFile("");
                change(event.currentTarget.value);
              }}
            />
          )}
        </Field>
        {faults.length > 0 && <Mistakes title="The blueprint cannot be taken as it is." of={faults} area={area} />}
        {Boolean(failure) && !ready && <Refused error={failure} />}
        <div class="row">
          <Button submit primary={!ready} disabled={!text.trim()}>
            Show the plan
          </Button>
          {!of && !text.trim() && <Button onClick={() => change(EXAMPLE)}>Begin with an example</Button>}
        </div>
      </Form>
      {ready && (
        <div class="panel stack">
          <h2 ref={planned} tabIndex={-1} class="deployments-planned">
            What would happen to {ready.name}
          </h2>
          {ready.warnings.length > 0 && <Mistakes title="Some of the file has no meaning here, and is left out." of={ready.warnings} area={area} />}
          <Plan plan={ready.plan} />
          {of && ready.plan.changes && (
            <details>
              <summary>What the blueprint says otherwise</summary>
              <Difference before={of.slices} after={ready.slices} label="Lines that change" />
            </details>
          )}
          {Boolean(failure) && <Refused error={failure} />}
          <div class="row">
            {ready.plan.changes && !ready.plan.refused.length && (
              <Button primary onClick={apply}>
                Apply {ready.name}
              </Button>
            )}
            {!ready.plan.changes && !ready.plan.refused.length && (
              <Button onClick={apply} label={`Apply again: ${ready.name}`}>
                Apply again
              </Button>
            )}
            <span class="soft small">
              {ready.plan.changes ? "All of it, or nothing. Nodes are those that would be chosen now." : "Only a version that was given up is tried again."}
            </span>
          </div>
        </div>
      )}
    </div>
  );
}
