// Rights, roles and memberships in words, and who may give what to whom. The server decides; this is to offer nothing
// that it would refuse (docs/users.md).
import type { Rights } from "../../api-types";
import type { Right, User } from "../../session";

export type { Rights } from "../../api-types";

/** Each right: what it is called, and what it allows. */
export const RIGHTS: readonly (readonly [Right, string, string])[] = [
  ["modify_workloads", "Work with machines", "Create, change, start, stop, move and delete them, and open their consoles. With membership * also deploy."],
  ["modify_inventory", "Change the inventory", "Load and change racks; drain, activate and forget nodes. For members of everything."],
  ["perform_repairs", "Repair", "Confirm that an unreachable node is off. For members of everything."],
  ["inject_faults", "Break things", "Break simulated hardware. For members of everything."],
  ["step_time", "Move time", "Step and run simulated time. For members of everything."],
  ["manage_accounts", "Manage accounts", "Make, change and delete accounts and their tokens, create projects, read the audit; as a member of everything set quotas."],
];

export const NONE: Rights = {
  manage_accounts: false,
  step_time: false,
  modify_workloads: false,
  modify_inventory: false,
  inject_faults: false,
  perform_repairs: false,
};

const operator: Rights = { ...NONE, modify_workloads: true, modify_inventory: true, perform_repairs: true, inject_faults: true, step_time: true };

/** Bundles of rights by name; the least first. */
export const ROLES: readonly (readonly [string, Rights])[] = [
  ["viewer", NONE],
  ["member", { ...NONE, modify_workloads: true }],
  ["operator", operator],
  ["admin", { ...operator, manage_accounts: true }],
];

/** Those of the rights wanted that are not held. */
export const lacking = (held: Rights, wanted: Rights): Right[] => RIGHTS.map(([right]) => right).filter((right) => wanted[right] && !held[right]);

/** The role with exactly these rights; empty: there is none. */
export const roleOf = (rights: Rights): string => ROLES.find(([, bundle]) => RIGHTS.every(([right]) => bundle[right] === rights[right]))?.[0] ?? "";

/** "operator", or the rights one by one. */
export function inShort(rights: Rights): string {
  const names = RIGHTS.filter(([right]) => rights[right]).map(([, title]) => title.toLowerCase());
  return roleOf(rights) || names.join(", ");
}

/** Whether memberships that are held reach as far as this one. */
export const covers = (held: readonly string[], wanted: string): boolean => held.some((mine) => mine === "*" || mine === wanted || mine === wanted.split("/")[0]);

/** What is wrong with a membership that `me` would give; null: nothing. */
export function wrongMembership(me: User, text: string): string | null {
  const pieces = text.split("/");
  if (!text) return "Say an org (acme), one project of it (acme/web), or * for everything.";
  if (text !== "*" && pieces[0] === "*") return "* stands alone, for every org.";
  if (pieces.length > 2 || pieces.some((piece) => !piece || piece === "." || piece === "..")) return "It must be an org (acme), one project of it (acme/web), or *.";
  if (!covers(me.memberships, text)) return `You are no member of ${text}, and cannot make others one.`;
  return null;
}

/** Why `me` can do nothing to this account; null: can. */
export function untouchable(me: User, user: User): string | null {
  const missing = lacking(me.rights, user.rights);
  return missing.length ? `It may do what you may not (${missing.join(", ")}). Ask an account manager who has these rights.` : null;
}

export const PROTECTED = "It is protected: it can be neither disabled nor deleted, and loses neither rights nor memberships.";
