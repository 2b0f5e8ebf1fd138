// The frame of every page: who is signed in, where one can go, and whether what one sees is still true.
import { type ComponentType } from "preact";
import { useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from "preact/hooks";
import { fromHere } from "./clock";
import { follow, live, unfollow } from "./live";
import { go, route, to } from "./route";
import { can, homePage, labsOnly, me, signOut, student, titled } from "./session";
import { SignIn } from "./pages/sign-in";
import { type Theme, theme } from "./theme";
import { Ago } from "./ui/time";
import { attempt, Busy, Button, Failure } from "./ui";
import { Confirmations } from "./ui/dialog";
import { bring } from "./ui/sideways";
import { Toasts } from "./ui/toast";

interface PageEntry {
  name: string;
  title: string;
  load: () => Promise<{ default: ComponentType }>;
  offered: () => boolean;
}

const anybody = (): boolean => true;
const PAGES: PageEntry[] = [
  { name: "overview", title: "Overview", load: () => import("./pages/overview"), offered: anybody },
  { name: "racks", title: "Racks", load: () => import("./pages/racks"), offered: anybody },
  { name: "vms", title: "Machines", load: () => import("./pages/vms"), offered: anybody },
  { name: "labs", title: "Labs", load: () => import("./pages/labs"), offered: anybody },
  { name: "deployments", title: "Deployments", load: () => import("./pages/deployments"), offered: anybody },
  { name: "events", title: "Events", load: () => import("./pages/events"), offered: anybody },
  { name: "audit", title: "Audit", load: () => import("./pages/audit"), offered: () => can("manage_accounts") },
  { name: "users", title: "Users", load: () => import("./pages/users"), offered: () => can("manage_accounts") },
];
const HIDDEN: PageEntry[] = [
  { name: "account", title: "Your account", load: () => import("./pages/account"), offered: anybody },
];

export function App() {
  const user = me.value;
  useEffect(() => {
    if (!user) return;
    follow();
    return unfollow;
  }, [user?.name]);
  // Users who see only labs go to that page directly.
  const astray = Boolean(user) && labsOnly.value && location.hash.replace(/^#\/?/, "") === "";
  useEffect(() => {
    if (astray) go(to("labs"), true);
  }, [astray]);
  if (user === undefined) return <Busy>Signing in</Busy>;
  if (user === null || route.value.page === "sign-in") return <SignIn />;
  if (astray) return null;
  return (
    <>
      <a class="shell-skip" href="#main" onClick={skip}>
        Skip to the page
      </a>
      <div class="shell">
        <Top />
        <Nav />
        <main class="shell-main" id="main" tabIndex={-1}>
          <Current key={user.name} />
        </main>
      </div>
      <Confirmations key={`asked ${user.name}`} />
      <Toasts />
    </>
  );
}

/** The hash is the route, so the link itself must not change it. */
function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function Top() {
  return (
    <header class="shell-top">
      <div class="shell-line">
        <a class="shell-brand" href={to(homePage.value)}>
          <img src="/favicon.svg" alt="" /> Hostler
        </a>
        <LiveSign />
        <label class="shell-colours small">
          <span class="unseen">Colours</span>
          <select
            aria-label="Colours"
            value={theme.value}
            onChange={(event) => (theme.value = event.currentTarget.value as Theme)}
          >
            <option value="system">System default</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </select>
        </label>
        <a class="shell-me" href={to("account")}>
          {me.value && titled(me.value)}
        </a>
        <Button quiet onClick={() => attempt(signOut)}>
          Sign out
        </Button>
      </div>
      {live.state.value === "stale" && <Stale />}
    </header>
  );
}

const SIGNS = {
  connecting: ["busy", "Connecting"],
  live: ["good", "Live"],
  stale: ["warn", "Not live"],
  ended: ["idle", "Ended"],
} as const;

function LiveSign() {
  const [look, word] = SIGNS[live.state.value];
  return (
    <span class={`shell-live state ${look}`} role="status">
      {word}
    </span>
  );
}

function Stale() {
  const problem = live.problem.value;
  return (
    <div class="shell-stale">
      <span role="alert">What you see may be old. {problem?.detail} The page tries again by itself.</span>{" "}
      {/* Outside of the alert, or it would be read out every second. */}
      {live.lastAt.value ? <>The server was last heard <Ago at={fromHere(live.lastAt.value)} />.</> : "Nothing came from the server yet."}
    </div>
  );
}

function Nav() {
  const { page } = route.value;
  const box = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    const here = box.current?.querySelector<HTMLElement>("[aria-current]");
    if (box.current && here) bring(box.current, here);
  }, [page]);
  return (
    <nav class="shell-nav" aria-label="Pages" ref={box}>
      <ul>
        {PAGES.filter((page) => page.offered() && (!student.value || page.name === "labs")).map((page) => (
          <li key={page.name}>
            <a href={to(page.name)} aria-current={route.value.page === page.name ? "page" : undefined}>
              {page.title}
            </a>
          </li>
        ))}
      </ul>
    </nav>
  );
}

const loaded = new Map<string, ComponentType>();

function Current() {
  const name = route.value.page;
  const entry = [...PAGES, ...HIDDEN].find((page) => page.name === name);
  const withheld = entry !== undefined && student.value && name !== "labs" && name !== "account";
  const [, again] = useState(0);
  const [failure, setFailure] = useState<unknown>(null);
  useLayoutEffect(() => {
    document.title = `${withheld ? "Not offered" : (entry?.title ?? "No such page")} · Hostler`;
  }, [name, withheld]);
  useArrival(name);
  useEffect(() => {
    if (!entry || withheld) return;
    setFailure(null);
    if (loaded.has(name)) return;
    entry.load().then(
      (module) => {
        loaded.set(name, module.default);
        again((n) => n + 1);
      },
      (error) => setFailure(error),
    );
  }, [name]);
  if (!entry) return <Nowhere name={name} />;
  if (withheld) return <Withheld title={entry.title} />;
  const Page = loaded.get(name);
  if (Page) return <Guarded key={name} page={Page} />;
  return failure ? <Failure error={failure} /> : <Busy>Loading {entry.title}</Busy>;
}

/** Who goes to another page begins at its top, with the keyboard as well. */
function useArrival(name: string): void {
  const before = useRef(name);
  useLayoutEffect(() => {
    if (before.current === name) return;
    before.current = name;
    scrollTo(0, 0);
    document.getElementById("main")?.focus({ preventScroll: true });
  }, [name]);
}

/** A page that fails takes nothing else down with it. */
function Guarded({ page: Page }: { page: ComponentType }) {
  const [error, again] = useErrorBoundary((failure) => console.error(failure));
  return error ? <Failure error={error} again={again} /> : <Page />;
}

function Nowhere({ name }: { name: string }) {
  return (
    <div class="empty">
      <h1>There is no page “{name}”</h1>
      <p>The address may be mistyped, or from another release.</p>
      <a class="button primary" href={to(homePage.value)}>
        {labsOnly.value ? "Go to the labs" : "Go to the overview"}
      </a>
    </div>
  );
}

/** For pages on which a student would see nothing. */
function Withheld({ title }: { title: string }) {
  return (
    <div class="empty">
      <h1>{title} is not offered to you</h1>
      <p>Your account has a lab, and nothing else. Everything about it is on one page.</p>
      <a class="button primary" href={to("labs")}>
        Go to your lab
      </a>
    </div>
  );
}
