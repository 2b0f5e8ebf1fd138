// A new machine. What will not fit is said before it is sent; what the server refuses stands at its field.
import { useEffect, useState } from "preact/hooks";
import { asProblem, at, get, post, Problem, withQuery } from "../../api";
import type { TerminalKey, VmRowPage } from "../../api-types";
import { go, route, to } from "../../route";
import { can, everywhere, me } from "../../session";
import { Button, Check, count, Empty, Failure, Form, Head, mib, Select, Text } from "../../ui";
import { durationOf, fieldOf, labelsOf, labelsText, wholeOf } from "./input";
import "./steps";
import type { Affinity, Image, Images, Quota, Spec, Vm, VmRow } from "./types";

interface Rule {
  how: "apart" | "together";
  level: Affinity["level"];
  labels: string;
  required: boolean;
}

interface Wanted {
  place: string;
  org: string;
  project: string;
  name: string;
  image: string;
  cpus: string;
  memory: string;
  disk: string;
  labels: string;
  expires: string;
  node_labels: string;
  on_node_loss: string;
  ssh_keys: string;
  user: string;
  user_data: string;
  network_config: string;
  cpu_share: string;
  on: boolean;
  shell: boolean;
  rules: Rule[];
}

const FRESH: Wanted = {
  place: "",
  org: "",
  project: "",
  name: "",
  image: "",
  cpus: "1",
  memory: "512",
  disk: "0",
  labels: "",
  expires: "",
  node_labels: "",
  on_node_loss: "wait",
  ssh_keys: "",
  user: "",
  user_data: "",
  network_config: "",
  cpu_share: "100",
  on: true,
  shell: true,
  rules: [],
};
const OTHER = " other";
const LEVELS: readonly Affinity["level"][] = ["node", "rack", "pdu", "tor"];

type Wrong = Partial<Record<string, string>>;

export function Create() {
  const [form, setForm] = useState<Wanted>({ ...FRESH, name: route.value.query.get("name") ?? "" });
  const [images, setImages] = useState<Images>({ items: [], any: false });
  const [origin, setOrigin] = useState<Vm | null>(null);
  const [key, setKey] = useState("");
  const [projects, setProjects] = useState<string[]>([]);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [failed, setFailed] = useState<unknown>(null);
  const snapshot = route.value.query.get("snapshot") ?? "";
  const set = (change: Partial<Wanted>): void => {
    setForm((before) => ({ ...before, ...change }));
    setProblem(null);
  };
  useEffect(() => {
    document.title = "Create a machine · Hostler";
    void load().catch(setFailed);
  }, []);
  const load = async (): Promise<void> => {
    const [found, first, terminal] = await Promise.all([get<Images>("/v1/images"), get<VmRowPage>(withQuery("/v1/vms", { brief: true, limit: 1000 })), get<TerminalKey>("/v1/terminal-key")]);
    const known = projectsOf(me.value?.memberships ?? [], first.items);
    setImages(found);
    setKey(terminal.key);
    setProjects(known);
    const asked = route.value.query.get("project") ?? "";
    if (snapshot) {
      const [org, project] = splitted(asked);
      const found = await get<Vm>(at`/v1/orgs/${org}/projects/${project}/vms/${route.value.query.get("origin") ?? ""}`);
      const { spec } = found;
      setOrigin(found);
      set({ cpus: String(spec.cpus), memory: String(spec.memory_mib), disk: String(spec.disk_gib), labels: labelsText(found.labels), ssh_keys: spec.ssh_keys.filter((one) => one !== terminal.key).join("\n"), shell: spec.ssh_keys.includes(terminal.key), user_data: spec.user_data, network_config: spec.network_config, cpu_share: String(spec.cpu_share) });
    }
    setForm((before) => ({ ...before, place: snapshot || known.includes(asked) ? asked : (known[0] ?? OTHER) }));
  };
  const [org, project] = form.place === OTHER ? [form.org, form.project] : splitted(form.place);
  const quota = useQuota(org, project);
  const image = chosenImage(images, origin ? origin.spec.image : form.image);
  const { body, wrong } = checked(form, image, quota, key, origin && { vm: origin.id, snapshot });
  const refused = problem && fieldOf(problem);
  const wrongAt = (field: string): string | null => (refused === field && problem ? problem.detail : null) ?? wrong[field] ?? null;
  const send = async (): Promise<void> => {
    if (!body) return;
    setProblem(null);
    try {
      const made = await post<Vm>(at`/v1/orgs/${org}/projects/${project}/vms`, body);
      go(to("vms", [made.org, made.project, made.id]));
    } catch (error) {
      setProblem(asProblem(error));
    }
  };
  const crumbs = <a href={to("vms")}>Machines</a>;
  if (!can("modify_workloads")) {
    return (
      <>
        <Head title="Create a machine" crumbs={crumbs} />
        <Empty title="You may not create machines">
          <p>That takes the right modify_workloads. Ask who manages your account.</p>
        </Empty>
      </>
    );
  }
  return (
    <>
      <Head title="Create a machine" crumbs={crumbs} />
      {failed !== null && <Failure error={failed} />}
      {origin && (
        <p class="note">
          Its disk begins as the snapshot <strong>{snapshot}</strong> of <a href={to("vms", [origin.org, origin.project, origin.id])}>{origin.name}</a>, on the same node; then it boots. Its image and user are the same.
        </p>
      )}
      <Form class="stack panel" onSubmit={send}>
        <div class="vms-pair">
          <Text label="Name" value={form.name} onInput={(name) => set({ name })} required wrong={wrongAt("name")} focus />
          <Select
            label="Project"
            value={form.place}
            onChange={(place) => set({ place })}
            options={snapshot ? [form.place] : [...projects.map((one) => [one, one] as const), ...(wide() ? [[OTHER, "Another one …"] as const] : [])]}
            hint={quotaHint(quota)}
          />
        </div>
        {form.place === OTHER && (
          <div class="vms-pair">
            <Text label="Organisation" value={form.org} onInput={(value) => set({ org: value })} required wrong={wrongAt("org")} />
            <Text label="Project in it" value={form.project} onInput={(value) => set({ project: value })} required wrong={wrongAt("project")} />
          </div>
        )}
        <div class="vms-pair vms-size">
          {!snapshot && <ImageField images={images} value={form.image} onChange={(value) => set({ image: value })} wrong={wrongAt("image")} />}
          <Text label="Cores" type="number" min={1} value={form.cpus} onInput={(cpus) => set({ cpus })} wrong={wrongAt("cpus")} hint={left(quota, "cpus", "")} />
          <Text label="Memory in MiB" type="number" min={1} value={form.memory} onInput={(memory) => set({ memory })} wrong={wrongAt("memory_mib")} hint={[image?.memory_mib ? `This image needs ${mib(image.memory_mib)} or more.` : "", left(quota, "memory_mib", " MiB")].join(" ")} />
          <Text label="Disk in GiB" type="number" min={0} value={form.disk} onInput={(disk) => set({ disk })} wrong={wrongAt("disk_gib")} hint={[image?.disk_gib ? `0: as large as the image's, ${image.disk_gib} GiB.` : "0: as large as the image's.", left(quota, "disk_gib", " GiB")].join(" ")} />
        </div>
        <div class="vms-pair">
          <Text label="Labels" value={form.labels} onInput={(labels) => set({ labels })} placeholder="app=web, tier=front" wrong={wrongAt("labels")} />
          <Text label="Delete it after" value={form.expires} onInput={(expires) => set({ expires })} placeholder="never" hint="30m, 2h, 1d; empty: never" wrong={wrongAt("expires_in")} />
        </div>
        <fieldset class="stack">
          <legend>Logging in</legend>
          <Text label="SSH keys" rows={3} mono value={form.ssh_keys} onInput={(value) => set({ ssh_keys: value })} placeholder="ssh-ed25519 AAAA… you@here" hint="Public keys, one per line." wrong={wrongAt("ssh_keys")} />
          {key && <Check label="A shell in this page" checked={form.shell} onChange={(shell) => set({ shell })} hint="The server's own key is let in, so that who may use the machine's console can open a shell here." />}
          {!snapshot && <Text label="User" value={form.user} onInput={(user) => set({ user })} placeholder={image?.user || "the image's own"} wrong={wrongAt("user")} />}
        </fieldset>
        <details>
          <summary>Placement, network and more</summary>
          <div class="stack">
            <div class="vms-pair">
              <Text label="Only on nodes with labels" value={form.node_labels} onInput={(value) => set({ node_labels: value })} placeholder="disk=ssd" wrong={wrongAt("node_labels")} />
              <Select label="If its node is unreachable" value={form.on_node_loss} onChange={(value) => set({ on_node_loss: value })} options={[["wait", "Wait for the node, and keep the disk"], ["fence", "Stop, and return with the disk when the node is back"], ["recreate", "Stop, and start elsewhere with a new disk"]]} />
              <Text label="Weight when cores are scarce" type="number" min={1} max={10000} value={form.cpu_share} onInput={(value) => set({ cpu_share: value })} wrong={wrongAt("cpu_share")} />
            </div>
            <Rules rules={form.rules} onChange={(rules) => set({ rules })} wrong={wrongAt("affinity")} />
            <Text label="User data" rows={4} mono value={form.user_data} onInput={(value) => set({ user_data: value })} hint={userDataHint(image, form.user_data)} wrong={wrongAt("user_data")} />
            <Text label="Network configuration" rows={3} mono value={form.network_config} onInput={(value) => set({ network_config: value })} hint="For cloud-init, in place of what Hostler tells it. Mostly empty." wrong={wrongAt("network_config")} />
            <Check label="Start it at once" checked={form.on} onChange={(on) => set({ on })} />
          </div>
        </details>
        {wrong["fit"] && (
          <div class="note warn" role="status">
            <p>
              <strong>It will not fit.</strong> {wrong["fit"]}
            </p>
          </div>
        )}
        {problem && <Failure error={problem} focus />}
        <div class="row">
          <Button submit primary disabled={!body || (snapshot !== "" && !origin)}>
            Create
          </Button>
          <a class="button quiet" href={to("vms")}>
            Cancel
          </a>
        </div>
      </Form>
    </>
  );
}

const wide = (): boolean => everywhere.value || (me.value?.memberships.some((one) => !one.includes("/")) ?? false);
const splitted = (place: string): [string, string] => {
  const [org = "", project = ""] = place.split("/");
  return [org, project];
};

function projectsOf(memberships: string[], rows: VmRow[]): string[] {
  const found = new Set(memberships.filter((one) => one.includes("/")));
  for (const row of rows) found.add(`${row.org}/${row.project}`);
  if (memberships.includes("*")) found.add("default/default");
  return [...found].sort();
}

function useQuota(org: string, project: string): Quota | null {
  const [quota, setQuota] = useState<Quota | null>(null);
  useEffect(() => {
    setQuota(null);
    if (!org || !project) return;
    const ended = new AbortController();
    const timer = setTimeout(() => {
      get<Quota>(at`/v1/orgs/${org}/projects/${project}/quota`, { signal: ended.signal }).then(setQuota, () => {});
    }, 150);
    return () => {
      clearTimeout(timer);
      ended.abort();
    };
  }, [org, project]);
  return quota;
}

function quotaHint(quota: Quota | null): string {
  if (!quota) return "";
  const above = Object.values(quota.inherited).some((limit) => limit !== null);
  if (!quota.revision) return above ? "Its org has a quota." : "It has no quota.";
  const { vms } = quota.limits;
  return vms === null ? "It has a quota." : `${count(Math.max(0, vms - quota.used_vms), "machine")} of ${vms} left by its quota.`;
}

type Limited = "cpus" | "memory_mib" | "disk_gib";

function left(quota: Quota | null, what: Limited, unit: string): string {
  const limit = quota?.limits[what] ?? null;
  return quota && limit !== null ? `${Math.max(0, limit - quota.used[what])}${unit} of ${limit} left by the quota.` : "";
}

/** What the image does with user data, as far as that is known. */
function userDataHint(image: Image | undefined, text: string): string {
  if (image?.seeding === "none") return text ? `It will not be run: ${image.name} takes none.` : `${image.name} takes none.`;
  if (image?.seeding !== "firmware") return "For its first boot: cloud-init, or a script that begins with #!.";
  const scripts = `${image.name} has no cloud-init, and runs only a script that begins with #!.`;
  return text && !text.startsWith("#!") ? `It will not be run: ${scripts}` : `For its first boot: ${scripts}`;
}

function chosenImage(images: Images, name: string): Image | undefined {
  return images.items.find((one) => (name ? one.name === name : one.default));
}

function ImageField({ images, value, onChange, wrong }: { images: Images; value: string; onChange: (value: string) => void; wrong: string | null }) {
  const standard = images.items.find((one) => one.default);
  if (images.any && !images.items.length) {
    return <Text label="Image" value={value} onInput={onChange} placeholder="the default" hint="The nodes here take any name." wrong={wrong} />;
  }
  const about = (one: Image): string => `${one.name} (${count(one.nodes, "node")}${one.user ? `, user ${one.user}` : ""})`;
  return (
    <div class="vms-wide">
      <Select
        label="Image"
        value={value}
        onChange={onChange}
        options={[["", standard ? `The default: ${about(standard)}` : "The node's default"], ...images.items.map((one) => [one.name, about(one)] as const)]}
        hint={images.items.length ? "" : "No node on duty has an image: hostler image build tiny"}
      />
    </div>
  );
}

function Rules({ rules, onChange, wrong }: { rules: Rule[]; onChange: (rules: Rule[]) => void; wrong: string | null }) {
  const change = (at: number, part: Partial<Rule>): void => onChange(rules.map((rule, i) => (i === at ? { ...rule, ...part } : rule)));
  return (
    <fieldset class="stack">
      <legend>Apart from others, or together with them</legend>
      {rules.map((rule, i) => (
        <div class="vms-rule" key={i}>
          <Select label="It stands" value={rule.how} onChange={(how) => change(i, { how: how as Rule["how"] })} options={[["apart", "apart from"], ["together", "together with"]]} />
          <Text label="Machines labelled" value={rule.labels} onInput={(labels) => change(i, { labels })} placeholder="app=db" />
          <Select label="By" value={rule.level} onChange={(level) => change(i, { level: level as Affinity["level"] })} options={LEVELS} />
          <Select label="Must it be so" value={rule.required ? "yes" : "no"} onChange={(value) => change(i, { required: value === "yes" })} options={[["yes", "required"], ["no", "preferred"]]} />
          <Button small label={`Take away rule ${i + 1}`} onClick={() => onChange(rules.filter((_, j) => j !== i))}>
            Take away
          </Button>
        </div>
      ))}
      {wrong && (
        <span class="wrong" role="alert">
          {wrong}
        </span>
      )}
      <div>
        <Button small onClick={() => onChange([...rules, { how: "apart", level: "node", labels: "", required: true }])}>
          Add a rule
        </Button>
      </div>
    </fieldset>
  );
}

/** The request, if it can be made; and what is wrong, by field. `fit`: nothing is mistyped, but there is no room. */
function checked(form: Wanted, image: Image | undefined, quota: Quota | null, key: string, origin: Spec["origin"]): { body: object | null; wrong: Wrong } {
  const wrong: Wrong = {};
  const take = <T,>(field: string, value: T | string): T => {
    if (typeof value === "string") wrong[field] = value;
    return value as T;
  };
  const cpus = take("cpus", wholeOf(form.cpus, 1));
  const memory_mib = take("memory_mib", wholeOf(form.memory, 1));
  const disk_gib = take("disk_gib", wholeOf(form.disk, 0));
  const cpu_share = take("cpu_share", wholeOf(form.cpu_share, 1));
  const labels = take("labels", labelsOf(form.labels));
  const node_labels = take("node_labels", labelsOf(form.node_labels));
  const expires = durationOf(form.expires);
  if (typeof expires === "string") wrong["expires_in"] = expires;
  const affinity: Affinity[] = [];
  for (const rule of form.rules) {
    const others = labelsOf(rule.labels);
    if (typeof others === "string") wrong["affinity"] = others;
    else affinity.push({ together: rule.how === "together", level: rule.level, labels: others, required: rule.required });
  }
  const mistyped = Object.keys(wrong).length > 0;
  const keys = form.ssh_keys.split("\n").map((one) => one.trim()).filter(Boolean);
  if (form.shell && key && !keys.includes(key)) keys.push(key);
  if (!mistyped) {
    const over = overQuota(quota, { cpus, memory_mib, disk_gib });
    for (const [field, text] of Object.entries(over)) wrong[field] ??= text;
    if (image?.memory_mib && memory_mib < image.memory_mib) wrong["memory_mib"] = `The image needs ${image.memory_mib} MiB or more.`;
    const reasons = Object.values(wrong);
    if (reasons.length) wrong["fit"] = reasons.join(" ");
  }
  const spec = { cpus, memory_mib, disk_gib, image: form.image, user: form.user, user_data: form.user_data, network_config: form.network_config, ssh_keys: keys, cpu_share, ...(origin ? { origin } : {}) };
  const body = { name: form.name, spec, power: form.on ? "on" : "off", labels, on_node_loss: form.on_node_loss, affinity, node_labels, expires_in: expires };
  return { body: mistyped ? null : body, wrong };
}

/** What would be too much, by field. The server has the last word. */
function overQuota(quota: Quota | null, more: Record<Limited, number>): Wrong {
  const over: Wrong = {};
  if (!quota) return over;
  const { limits, used } = quota;
  if (limits.vms !== null && quota.used_vms + 1 > limits.vms) over["name"] = `The project has ${quota.used_vms} of ${count(limits.vms, "machine")} by its quota.`;
  const words: Record<Limited, string> = { cpus: "cores", memory_mib: "MiB of memory", disk_gib: "GiB of disk" };
  for (const what of Object.keys(words) as Limited[]) {
    const limit = limits[what];
    if (limit !== null && used[what] + more[what] > limit) over[what] = `The quota leaves ${Math.max(0, limit - used[what])} of ${limit} ${words[what]}.`;
  }
  return over;
}
