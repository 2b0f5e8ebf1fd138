// Who is signed in, and what they may do.
import { computed, signal } from "@preact/signals";
import { asProblem, del, get, post, Problem, useSession } from "./api";
import type { BrowserSession, Rights, UserView } from "./api-types";
import { withoutStream } from "./live";
import { toast } from "./ui/toast";

export type Right = keyof Rights;
export type User = UserView;

export type Credentials = { name: string; password: string } | { token: string } | { ticket: string };

/** undefined: not known yet; null: signed out. */
export const me = signal<User | null | undefined>(undefined);
export const sessionEndsAt = signal(0);
/** Why the user is no longer signed in. */
export const signedOutBecause = signal("");

/** The display name with the account name, because a full name can be chosen freely. */
export const titled = (user: User): string => (user.full_name && user.full_name !== user.name ? `${user.full_name} (${user.name})` : user.name);

export const everywhere = computed(() => me.value?.memberships.includes("*") ?? false);
/** Rights on what serves every org: they count for members of everything alone. */
const SHARED = new Set<Right>(["modify_inventory", "perform_repairs", "inject_faults", "step_time"]);
export const can = (right: Right): boolean => (me.value?.rights[right] ?? false) && (!SHARED.has(right) || everywhere.value);
/** Who may deploy: what they say runs on every node. */
export const deploys = computed(() => can("modify_workloads") && everywhere.value);
export const sees = (org: string, project: string): boolean =>
  me.value?.memberships.some((one) => one === "*" || one === org || one === `${org}/${project}`) ?? false;
/** Whether the user has a lab and no other rights. */
export const student = computed(() => {
  const [first, ...others] = me.value?.memberships ?? [];
  return first !== undefined && others.length === 0 && first.startsWith("labs/") && !can("manage_accounts");
});

/** Whether labs are all that one sees, be it as one who looks after them: they are the first page then. */
export const labsOnly = computed(() => {
  const all = me.value?.memberships ?? [];
  return all.length > 0 && all.every((one) => one === "labs" || one.startsWith("labs/")) && !can("manage_accounts");
});
/** The page that one comes to first. */
export const homePage = computed(() => (labsOnly.value ? "labs" : "overview"));

/** The tabs of a browser share one session: who signs in or out in one does so in all. */
const tabs = new BroadcastChannel("hostler-session");
tabs.onmessage = () => lookAgain("You signed out in another tab.");

const openedAs = (before: User, now: User): string => `This page was opened as ${titled(before)}, and you are signed in as ${titled(now)} now.`;

let looking: Promise<void> | undefined;

/** The session ended, or another tab changed it: read it again. `because`: the message if there is none. */
function lookAgain(because: string): void {
  const before = me.value;
  looking ??= resume().then(() => {
    looking = undefined;
    if (before && me.value && before.name !== me.value.name) toast(openedAs(before, me.value), "bad");
    else if (before && me.value === null) signedOutBecause.value ||= because;
  });
}

const ended = (): void => lookAgain("Your session has ended: it was too old, or it was revoked. Sign in again to go on.");

/** A write showed what does not fit the browser's session: it is another one. Who asked for it was perhaps somebody else, so nothing is repeated. */
async function swapped(refused: Problem): Promise<Problem> {
  const before = me.value;
  await resume();
  const now = me.value;
  if (!before || !now) return refused;
  const detail = before.name === now.name ? "You have signed in again since this page was opened." : openedAs(before, now);
  return new Problem(refused.status, refused.type, refused.title, `${detail} Nothing was done.`, "Do it again if you still mean it");
}

function begin(session: BrowserSession): void {
  useSession(session.csrf, ended, swapped);
  sessionEndsAt.value = session.expires_at;
  signedOutBecause.value = "";
  me.value = session.user;
}

/** Go on with the session that the browser has, if it has one. */
export async function resume(): Promise<void> {
  try {
    const session = await get<BrowserSession | null>("/v1/sessions/browser");
    if (session) begin(session);
    else me.value = null;
  } catch (error) {
    const problem = asProblem(error);
    // Who is signed in stays so while the server is not to be reached.
    if (me.value && problem.status !== 401) return;
    if (problem.status !== 401) signedOutBecause.value = `${problem.detail} ${problem.next}`;
    me.value = null;
  }
}

export async function signIn(credentials: Credentials): Promise<void> {
  begin(await post<BrowserSession>("/v1/sessions/browser", credentials));
  tabs.postMessage(0);
}

export async function signOut(): Promise<void> {
  await withoutStream(() => del("/v1/sessions"), { goOn: "after an error" });
  signedOutBecause.value = "";
  me.value = null;
  tabs.postMessage(0);
}
