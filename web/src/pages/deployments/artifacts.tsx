// What slices are made of.
import { useEffect, useState } from "preact/hooks";
import { all, at, put } from "../../api";
import { deploys } from "../../session";
import { Ago, Busy, Button, Copy, Empty, Failure, Field, Form, Table, Text, toast } from "../../ui";
import type { Artifact } from "./types";

export function Artifacts() {
  const [items, setItems] = useState<Artifact[] | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const reload = (): Promise<void> => all<Artifact>("/v1/artifacts").then(setItems, setFailure);
  useEffect(() => void reload(), []);
  if (failure) return <Failure error={failure} again={reload} />;
  if (!items) return <Busy>Looking for artifacts</Busy>;
  return (
    <div class="stack">
      {items.length ? (
        <Table caption="Artifacts" head={["Artifact", "File", "Size", "Published", "SHA-256"]}>
          {items.map((one) => (
            <tr key={one.artifact}>
              <th scope="row" class="mono">
                {one.artifact}
              </th>
              <td class="deployments-why">{one.file}</td>
              <td class="deployments-number">{Math.ceil(one.size / 1024)} KiB</td>
              <td>{one.published_at ? <Ago at={one.published_at} /> : "unknown"}</td>
              <td class="mono" title={one.sha256}>
                {one.sha256.slice(0, 12)}
              </td>
            </tr>
          ))}
        </Table>
      ) : (
        <Empty title="No artifact yet">
          <p>A slice is Python code, packed as a wheel. From the command line:</p>
          <Copy text="hostler slice new greeting --group org.example" />
          <Copy text="hostler slice push" />
        </Empty>
      )}
      {deploys.value && <Publish done={reload} />}
    </div>
  );
}

function Publish({ done }: { done: () => Promise<void> }) {
  const [file, setFile] = useState<File | null>(null);
  const [artifact, setArtifact] = useState("");
  const [failure, setFailure] = useState<unknown>(null);
  const send = async (): Promise<void> => {
    if (!file) return;
    setFailure(null);
    try {
      const path = at`/v1/artifacts/${artifact.trim()}/file` + `?name=${encodeURIComponent(file.name)}`;
      await put(path, undefined, { raw: { body: file, type: "application/octet-stream" } });
    } catch (error) {
      setFailure(error);
      return;
    }
    toast(`${artifact.trim()} is published.`);
    await done();
  };
  const choose = (chosen: File | undefined): void => {
    setFile(chosen ?? null);
    // A wheel's name has the name and the version; the group is the publisher's own.
    const [name = "", version = ""] = chosen?.name.split("-") ?? [];
    const group = artifact.split(":")[0] || "org.example";
    if (chosen?.name.endsWith(".whl")) setArtifact(`${group}:${name.replaceAll("_", "-").toLowerCase()}:${version}`);
  };
  return (
    <Form class="panel stack" onSubmit={send}>
      <h2>Publish an artifact</h2>
      <div class="grid">
        <Field label="File" hint="A wheel of pure Python, or a module; at most 64 MiB">
          {(named) => <input {...named} type="file" accept=".whl,.py" onChange={(event) => choose(event.currentTarget.files?.[0])} />}
        </Field>
        <Text label="Artifact" value={artifact} onInput={setArtifact} mono hint="group:name:version; what is published never changes" placeholder="org.example:greeting:1.0.0" />
      </div>
      {Boolean(failure) && <Failure error={failure} />}
      <div class="row">
        <Button submit primary disabled={!file || !artifact.trim()}>
          Publish
        </Button>
      </div>
    </Form>
  );
}
