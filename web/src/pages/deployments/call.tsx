// A call of a method, by hand.
import { useState } from "preact/hooks";
import { at, post } from "../../api";
import { deploys } from "../../session";
import { Button, Failure, Form, Select, Text } from "../../ui";
import type { BlueprintView, EndpointView } from "./types";
import { versionOf } from "./words";

export function Call({ view, endpoints }: { view: BlueprintView; endpoints: Record<string, EndpointView[]> }) {
  const open = new Set(view.slices.filter((spec) => deploys.value || spec.callers === "everybody").map((spec) => baseOf(spec.artifact)));
  const methods = [...new Set(Object.entries(endpoints).flatMap(([base, some]) => (open.has(base) ? some.map((one) => `${base} ${one.method}`) : [])))].sort();
  const [chosen, setChosen] = useState("");
  const [text, setText] = useState("{}");
  const [answer, setAnswer] = useState<{ text: string; took: number } | null>(null);
  const [wrong, setWrong] = useState<string | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const target = methods.includes(chosen) ? chosen : (methods[0] ?? "");
  const call = async (): Promise<void> => {
    setAnswer(null);
    setFailure(null);
    setWrong(null);
    let given: unknown;
    try {
      given = JSON.parse(text || "{}");
    } catch (error) {
      setWrong(`Not JSON: ${error instanceof Error ? error.message : String(error)}`);
      return;
    }
    const [base = "", method = ""] = target.split(" ");
    const began = performance.now();
    try {
      const told = await post<string>(at`/v1/invoke/${base}/${method}`, given, { text: true });
      setAnswer({ text: told, took: performance.now() - began });
    } catch (error) {
      setFailure(error);
    }
  };
  if (!methods.length) return <p class="note">No method can be called now: no instance serves.</p>;
  return (
    <Form class="panel stack" onSubmit={call}>
      <Select label="Method" value={target} onChange={setChosen} options={methods} hint={versions(endpoints, target)} />
      <Text label="Arguments" value={text} onInput={setText} rows={4} mono wrong={wrong} hint='A JSON object, by name: {"name": "Ada"}' />
      <div class="row">
        <Button submit primary>
          Call
        </Button>
      </div>
      {Boolean(failure) && <Failure error={failure} />}
      {answer && (
        <div role="status">
          <p class="soft small">Answered within {Math.round(answer.took)} ms</p>
          <pre>{answer.text}</pre>
        </div>
      )}
    </Form>
  );
}

const baseOf = (artifact: string): string => artifact.split(":").slice(0, 2).join(":");

function versions(endpoints: Record<string, EndpointView[]>, target: string): string {
  const [base = "", method = ""] = target.split(" ");
  const found = [...new Set((endpoints[base] ?? []).filter((one) => one.method === method).map((one) => versionOf(one.artifact)))];
  return found.length > 1 ? `Shared out over the versions ${found.join(" and ")}` : `Version ${found.join()}`;
}
