// What an event says, in words.
import type { Change } from "../../live";
import { labProject, ofEvent } from "../../objects";
import { count } from "../../ui";
import type { SliceState } from "../deployments/types";
import { stateWord } from "../deployments/words";

type Fields = Record<string, unknown>;

/** Kinds of events as people look for them. */
export const GROUPS: readonly (readonly [name: string, title: string, kinds: readonly string[]])[] = [
  ["machines", "Machines", ["vm", "handle"]],
  ["labs", "Labs", ["lab"]],
  ["nodes", "Nodes", ["node", "alive"]],
  ["racks", "Racks", ["region", "zone", "rack", "blade", "pdu", "tor"]],
  ["deployments", "Deployments", ["blueprint", "deployment", "slice", "endpoint"]],
  ["workloads", "Workloads", ["workload"]],
  ["leader", "Leader", ["leader"]],
];

export const KIND_WORDS: Record<string, string> = {
  vm: "machine spec",
  handle: "machine status",
  alive: "sign of life",
  leader: "leadership",
};

const text = (value: unknown): string => (typeof value === "string" || typeof value === "number" ? String(value) : "");
const lower = (value: unknown): string => text(value).toLowerCase().replaceAll("_", " ");
const fields = (value: unknown): Fields => (typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : {});
const onNode = (record: Fields): string => (text(record["node"]) ? ` on ${text(record["node"])}` : "");
const because = (record: Fields): string => (text(record["detail"]) ? `: ${text(record["detail"])}` : "");

const GONE: Record<string, string> = {
  vm: "is deleted",
  handle: "is gone from its node",
  alive: "is unreachable",
  leader: "no leader",
  node: "is forgotten",
  endpoint: "can no longer be called",
  lab: "is forgotten",
};

/** Fields that say when the record came to be as it is. */
const TIMES: Record<string, string> = {
  handle: "seen_at",
  alive: "started_at",
  lab: "changed_at",
  deployment: "changed_at",
  slice: "timestamp",
  leader: "at",
};

/** When it happened, in milliseconds: when the event arrived, or else the time in its record; null: unknown. */
export function happenedAt(change: Change): number | null {
  if (change.heardAt) return change.heardAt;
  const record = fields(change.record);
  // The spec of a machine has only its creation time.
  const at = record[change.kind === "vm" && record["generation"] === 1 ? "created_at" : (TIMES[change.kind] ?? "")];
  return typeof at === "number" && at > 0 ? at * 1000 : null;
}

/** Which version of a slice, and on which node: `local-1/org.example:greeting:1.1.0`. */
function sliceAt(subject: string): [version: string, node: string] {
  const [node = "", artifact = ""] = subject.split("/");
  return [artifact.split(":").slice(2).join(":"), node];
}

/** What happened, without what it happened to. */
export function happened(change: Change): string {
  const [version, node] = sliceAt(change.subject);
  if (change.type === "delete" && change.kind === "slice") return `${version} is gone from ${node}`;
  if (change.type === "delete") return GONE[change.kind] ?? "is deleted";
  const record = fields(change.record);
  switch (change.kind) {
    case "vm":
      return record["deleting"] ? "is to be deleted" : `power: ${record["power"] === "off" ? "off" : "on"}`;
    case "handle":
      return `${lower(record["state"])}${onNode(record)}${because(record)}`;
    case "lab":
      return ofLab(record);
    case "node":
      return `is ${lower(record["lifecycle"])}`;
    case "alive":
      return "sends heartbeats";
    case "leader":
      return record["fence"] ? `${text(record["address"])} leads with fence ${text(record["fence"])}` : `${text(record["address"])} is taking it`;
    case "blueprint":
      return `asks for ${count(Array.isArray(record["slices"]) ? record["slices"].length : 0, "slice")}`;
    case "deployment":
      return `${lower(record["phase"])}${text(record["artifact"]) ? `, ${text(record["artifact"])}` : ""}${text(record["why"]) ? `: ${text(record["why"])}` : ""}`;
    case "slice":
      return `${version}: ${states(record["instances"])} on ${node}`;
    case "endpoint":
      return `can be called on ${text(record["node-id"]) || text(record["node"]) || text(record["address"])}: ${change.subject.split("/").slice(1).join(", instance ")}`;
    case "workload":
      return `${count(Number(record["instances"] ?? 0), "instance")} requested`;
    default:
      return `${record["enabled"] === false ? "disabled" : "enabled"}${text(record["condition"]) ? `, ${lower(record["condition"])}` : ""}`;
  }
}

function ofLab(record: Fields): string {
  const lab = fields(record["lab"]);
  const news = Array.isArray(record["news"]) ? fields(record["news"][record["news"].length - 1]) : {};
  if (lab["phase"]) return `lab ${text(lab["labId"])} is ${text(lab["phase"])}${because(lab)}`;
  return `${text(news["event"]) || "none"}${text(news["reason"]) ? `: ${text(news["reason"])}` : ""}`;
}

function states(value: unknown): string {
  const found = Object.entries(fields(value)).map(([state, n]) => `${text(n)} ${stateWord(state as SliceState)}`);
  return found.join(", ") || "nothing left";
}

/** Org and project of what it is about; null: it belongs to none. */
export function home(change: Change): [org: string, project: string] | null {
  const parts = change.subject.split("/");
  if (change.kind === "lab") return ["labs", labProject(change.subject)];
  if (change.kind === "vm" || change.kind === "handle") return [parts[0] ?? "", parts[1] ?? ""];
  return null;
}

/** All of it: what happened to what. `name`: what a machine is called, where that is known. */
export function sentence(change: Change, name = ""): string {
  const about = ofEvent(change.kind, change.subject);
  if (change.kind === "slice") return `${about.name} ${happened(change)}`;
  const words = name ? `${about.words.slice(0, about.words.lastIndexOf("/") + 1)}${name}` : about.words;
  return `${words}: ${happened(change)}`;
}
