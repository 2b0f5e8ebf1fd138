// What things are called and where their pages are. Everything that names an object comes through here: keys of the
// store (`/plasmavmc/vms/acme/web/ID`), objects as `hostler why` takes them (`vm/acme/web/www`), and what traces call
// them (`vm acme/web/www`, `node r1-b2`).
import { type ComponentChildren, h, type VNode } from "preact";
import { to } from "./route";

export interface Thing {
  /** vm, node, rack, region, lab, labs, workload, blueprint, slice, user, token, quota, project, leader, other. */
  kind: string;
  /** For people: "machine acme/web/www". */
  words: string;
  /** Without its kind: "acme/web/www". */
  name: string;
  /** As `GET /v1/why?object=` takes it; empty: it cannot be explained. */
  object: string;
  /** Its page; null: it has none. */
  link: string | null;
}

const WORDS: Record<string, string> = {
  vm: "machine",
  labs: "catalogue of labs",
  user: "account",
  leader: "leadership",
};
/** Kinds that `GET /v1/why` and `GET /v1/decisions` know. */
const ASKED = new Set(["vm", "node", "rack", "lab", "workload", "blueprint", "slice"]);

/** Families of keys, each with the kind it is about and which of its parts are the name. */
const KEYS: [RegExp, string][] = [
  [/^\/plasmavmc\/(?:vms|handles|locks)\/([^/]+)\/([^/]+)\/([^/]+)$/, "vm"],
  [/^\/hostler\/v1\/names\/([^/]+)\/([^/]+)\/([^/]+)$/, "vm"],
  [/^\/hostler\/v1\/(?:members|alive|silences)\/([^/]+)$/, "node"],
  [/^\/CloudChamber\/V0\.1\/users\/([^/]+)$/, "user"],
  [/^\/CloudChamber\/V0\.1\/racks\/([^/]+)$/, "rack"],
  [/^\/CloudChamber\/V0\.1\/rack\/([^/]+)\/blades\/([^/]+)$/, "rack"],
  [/^\/CloudChamber\/V0\.1\/rack\/([^/]+)\/(?:pdu|tor)s?(?:\/[^/]+)?$/, "rack"],
  [/^\/CloudChamber\/V0\.1\/workloads\/([^/]+)$/, "workload"],
  [/^\/CloudChamber\/V0\.1\/workload\/([^/]+)\/instances?\/([^/]+)(?:\/(?:actual|target))?$/, "workload"],
  [/^\/hostler\/v1\/(?:regions|zones)\/([^/]+)(?:\/([^/]+))?$/, "region"],
  [/^\/hostler\/v1\/labs\/([^/]+)$/, "lab"],
  [/^\/hostler\/v1\/lab-catalogues\/([^/]+)$/, "labs"],
  [/^\/hostler\/v1\/quotas\/([^/]+)\/([^/]+)$/, "quota"],
  [/^\/hostler\/v1\/org-quotas\/([^/]+)$/, "quota"],
  [/^\/hostler\/v1\/projects\/([^/]+)\/([^/]+)$/, "project"],
  [/^blueprints\/([^/]+)$/, "blueprint"],
  [/^\/hostler\/v1\/blueprint-history\/([^/]+)\/[^/]+$/, "blueprint"],
  [/^\/hostler\/v1\/(?:slice-owners|deployments|slice-retries|slice-decisions)\/([^/]+)$/, "slice"],
  [/^slices\/[^/]+\/([^/]+)$/, "slice"],
  [/^endpoints\/([^/]+)\/[^/]+$/, "slice"],
  [/^sysvvm\/[12]\/([^/]+)$/, "leader"],
];
const COMMAND = /^\/hostler\/v1\/(?:nodes\/[^/]+\/vms|arrivals\/[^/]+)\/([^/]+)$/;

/** What kinds of events (`GET /v1/events`) are about. */
const KINDS: Record<string, string> = {
  vm: "vm",
  handle: "vm",
  lab: "lab",
  node: "node",
  alive: "node",
  leader: "leader",
  blueprint: "blueprint",
  deployment: "slice",
  workload: "workload",
  region: "region",
  zone: "region",
  rack: "rack",
  blade: "rack",
  pdu: "rack",
  tor: "rack",
};

/** `group:name` of `group:name:version`. */
export const baseOf = (artifact: string): string => artifact.split(":").slice(0, 2).join(":");

/** A node is called RACK-BLADE, and no rack has a dash in its name. */
export function nodeLink(node: string): string {
  const dash = node.indexOf("-");
  return dash > 0 && dash < node.length - 1 ? to("racks", [node.slice(0, dash), node.slice(dash + 1)]) : to("racks", [], { node });
}

/** The project of a user's lab, as `lab_project` of the server writes it. */
export const labProject = (user: string): string =>
  user === "." || user === ".." ? user.replaceAll(".", "^2E") : user.replace(/[/*^]/g, (c) => `^${c.charCodeAt(0).toString(16).toUpperCase()}`);

/** The user whose lab has that project. */
export const labUser = (project: string): string => project.replace(/\^([0-9A-F]{2})/g, (_, code: string) => String.fromCharCode(parseInt(code, 16)));

/** One thing, by its kind and the parts of its name. */
export function named(kind: string, parts: string[]): Thing {
  const ofLab = kind === "lab" ? [parts.join("/")] : parts; // a web user id may hold slashes
  const cut = kind === "slice" ? [baseOf(parts[0] ?? "")] : ofLab;
  const name = cut.join("/");
  const word = WORDS[kind] ?? kind;
  const whole = kind === "labs" || kind === "leader" ? word : `${word} ${name}`;
  const object = ASKED.has(kind) && (kind !== "vm" || cut.length === 3) ? `${kind}/${name}` : "";
  return { kind, words: whole, name, object, link: linkOf(kind, cut) };
}

function linkOf(kind: string, parts: string[]): string | null {
  const [first = "", second = ""] = parts;
  switch (kind) {
    case "vm":
      return parts.length === 3 ? to("vms", parts) : null;
    case "node":
      return nodeLink(first);
    case "rack":
      return to("racks", parts);
    case "lab":
      return to("labs", [first]);
    case "labs":
      return to("labs");
    case "blueprint":
      return to("deployments", [first]);
    case "slice":
      return to("deployments", [], { slice: first });
    case "user":
      return to("users", [first]);
    case "quota":
    case "project":
      return to("vms", [], second ? { org: first, project: second } : { org: first });
    case "leader":
      return to("overview");
    case "workload":
      return to("events", [], { view: "why", object: `workload/${parts.join("/")}` });
    default:
      return null;
  }
}

/** From a key, an object name, or the subject of a decision. */
export function thing(text: string): Thing {
  for (const [shape, kind] of KEYS) {
    const found = shape.exec(text);
    if (found) return named(kind, kind === "lab" ? [labUser(found[1] ?? "")] : found.slice(1).filter(Boolean));
  }
  if (/^\/hostler\/v1\/(?:tokens|tickets)\//.test(text) || text === "a token") return { kind: "token", words: "a token", name: "", object: "", link: null };
  const told = COMMAND.exec(text);
  if (told) return { kind: "vm", words: `machine ${told[1]}`, name: told[1] ?? "", object: `vm/${told[1]}`, link: null };
  const [, kind = "", rest = ""] = /^([a-z]+)[ /](.+)$/.exec(text) ?? [];
  if (kind === "labs" || kind === "quota" || kind === "project" || kind === "user" || ASKED.has(kind)) return named(kind, rest.split("/"));
  return { kind: "other", words: text, name: text, object: "", link: null };
}

/** What an event is about. */
export function ofEvent(kind: string, subject: string): Thing {
  const parts = subject.split("/");
  if (kind === "slice") return named("slice", [parts[1] ?? ""]);
  if (kind === "endpoint" || kind === "alert") return named("slice", [parts[0] ?? ""]);
  return named(KINDS[kind] ?? kind, parts);
}

const UPPER = /\b(?:JOINING|ON_DUTY|DRAINING|DECOMMISSIONED|SHUTTING_DOWN)\b/g;
const ISO = /\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)/g;

/** What the server says, with states as they are called everywhere, and times as clocks here show them. */
export const told = (text: string): string =>
  text.replace(UPPER, (state) => state.toLowerCase().replaceAll("_", " ")).replace(ISO, (at) => new Date(at).toLocaleString());

/** Its words as a link to its page, or plainly where it has none. */
export function ObjectLink({ of, children }: { of: Thing | string; children?: ComponentChildren }): VNode {
  const found = typeof of === "string" ? thing(of) : of;
  const content = children ?? found.words;
  return found.link ? h("a", { href: found.link }, content) : h("span", null, content);
}
