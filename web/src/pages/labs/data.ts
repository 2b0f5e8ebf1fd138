// What these pages read and ask for.
import { useEffect, useRef, useState } from "preact/hooks";
import { all, asProblem, at, del, get, post, Problem, withQuery } from "../../api";
import type { LabNewsPage, TicketView, VmPage } from "../../api-types";
import { useLive } from "../../live";
import { labProject, labUser } from "../../objects";
import { can, everywhere, me } from "../../session";
import { confirm, toast } from "../../ui";
import { titleOf } from "./words";
import type { Answer, Lab, News, Offers, Why } from "./types";

const ORG = "labs";

/** The users whose labs are one's own to see; null: all. */
export function mine(): string[] | null {
  const memberships = me.value?.memberships ?? [];
  if (everywhere.value || memberships.includes(ORG)) return null;
  return memberships.filter((one) => one.startsWith(`${ORG}/`)).map((one) => labUser(one.slice(ORG.length + 1)));
}

/** Account names ignore case; users of labs do not. */
const accounts = new Intl.Collator("en", { sensitivity: "accent" });

/** Whether one may start and stop this user's lab, and log into it: it is one's own, by membership and by name, or one has the right. */
export function mayUse(user: string): boolean {
  if (can("modify_workloads")) return true;
  const own = me.value;
  return own != null && own.memberships.includes(`${ORG}/${user}`) && accounts.compare(user, own.name) === 0;
}
/** Whether one may extend labs, and say something to their users. */
export const mayTeach = (): boolean => can("modify_workloads");

export interface Labs {
  labs: Lab[] | null;
  offers: Offers | null;
  problem: Problem | null;
  reload: () => Promise<void>;
}

/** A class is read again at each change, a university every few seconds. */
const MANY = 300;

/** The case of letters does not count, and numbers are ordered by value: ada, Bo, u2, u10. */
const ORDER = new Intl.Collator("en", { numeric: true });

/** All labs that one sees, and the catalogue; kept up to date. */
export function useLabs(): Labs {
  const [found, setFound] = useState<Omit<Labs, "reload">>({ labs: null, offers: null, problem: null });
  const reload = async (): Promise<void> => {
    try {
      const [labs, offers] = await Promise.all([all<Lab>("/v1/labs"), get<Offers>("/v1/lab-catalogue")]);
      setFound({ labs: labs.sort((a, b) => ORDER.compare(a.user, b.user)), offers, problem: null });
    } catch (error) {
      setFound((before) => ({ ...before, problem: asProblem(error) }));
    }
  };
  useLive(["lab"], reload, (found.labs?.length ?? 0) > MANY ? 4000 : 400);
  return { ...found, reload };
}

/** What happened to one user's labs; kept up to date. */
export function useNews(user: string): News[] | null {
  const [news, setNews] = useState<News[] | null>(null);
  const wanted = useRef(user);
  wanted.current = user;
  useLive(["lab"], async () => {
    try {
      const page = await get<LabNewsPage>(at`/v1/labs/${user}/events`);
      if (wanted.current === user) setNews(page.items);
    } catch {
      // What is shown of the lab itself says what is wrong.
    }
  }, 400);
  return news;
}

/** What its machine is called; its id until that is known. */
export function useMachine({ user, vm }: Lab): string {
  const [name, setName] = useState("");
  useEffect(() => {
    let ended = false;
    setName("");
    const known = ({ items }: { items: { id: string; name: string }[] }): void => {
      if (!ended) setName(items.find((one) => one.id === vm)?.name ?? "");
    };
    if (vm) get<VmPage>(at`/v1/orgs/${ORG}/projects/${labProject(user)}/vms`).then(known, () => {});
    return () => {
      ended = true;
    };
  }, [user, vm]);
  return name || vm;
}

export const whyOf = (user: string): Promise<Why> => get<Why>(withQuery("/v1/why", { object: `lab/${user}` }));

export const start = (user: string, labId: number): Promise<Answer> => post<Answer>("/v1/labs", { user, labId });
export const extend = (lab: Lab, minutes: number): Promise<Answer> => post<Answer>(at`/v1/labs/${lab.user}/extend`, { minutes, labId: lab.labId });
export const stop = (lab: Lab): Promise<Answer> => del<Answer>(withQuery(at`/v1/labs/${lab.user}`, { labId: lab.labId }));
export const message = (user: string, text: string): Promise<Answer> => post<Answer>(at`/v1/labs/${user}/message`, { text });

/** Where the terminal is to be opened; an empty screen wants all that is kept. */
export async function terminalOf(user: string, empty: boolean): Promise<string> {
  const { url, ticket } = await post<TicketView>(at`/v1/labs/${user}/tickets`);
  return withQuery(url, { ticket, replay: empty ? "all" : "missed" });
}

/** Asked first: everything on it is lost. */
export function reallyStop(labs: Lab[], own = false): Promise<boolean> {
  const [first] = labs;
  const one = labs.length === 1 && first;
  const what = one ? (own ? `your lab “${titleOf(first)}”` : `the lab of ${first.user}`) : `${labs.length} labs`;
  if (one && first.phase === "waiting") {
    return confirm({ title: own ? "Leave the queue?" : `Take ${first.user} out of the queue?`, text: `${own ? "You lose your" : `${first.user} loses the`} place, and would begin at the end again.`, action: own ? "Leave it" : "Take out", danger: true });
  }
  const whose = one ? (own ? "Your machine is" : `The machine of ${first.user} is`) : `The machines of ${names(labs)} are`;
  return confirm({ title: `Stop ${what}?`, text: `${whose} deleted, with all that is on ${one ? "it" : "them"}. This cannot be undone.`, action: one ? "Stop it" : "Stop them", danger: true });
}

function names(labs: Lab[]): string {
  const shown = labs.slice(0, 10).map((lab) => lab.user);
  return labs.length > shown.length ? `${shown.join(", ")} and ${labs.length - shown.length} more` : shown.join(", ");
}

const AT_ONCE = 6;

/** Do the same for each of many, and show one line with the result. A refusal shows the first reason. */
export async function forEach<T>(items: readonly T[], action: (item: T) => Promise<unknown>, done: (n: number) => string): Promise<void> {
  const left = [...items];
  const problems: Problem[] = [];
  let good = 0;
  const worker = async (): Promise<void> => {
    for (let item = left.shift(); item !== undefined; item = left.shift()) {
      try {
        await action(item);
        good += 1;
      } catch (error) {
        problems.push(asProblem(error));
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(AT_ONCE, items.length) }, worker));
  if (good) toast(done(good));
  const [first] = problems;
  if (first) toast(`${problems.length > 1 ? `${problems.length} were not done, the first because: ` : ""}${first.detail || first.title} ${first.next}`.trim(), "bad");
}
