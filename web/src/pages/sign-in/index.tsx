import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { asProblem, Problem } from "../../api";
import { go, route, to } from "../../route";
import { type Credentials, homePage, me, signedOutBecause, signIn, titled } from "../../session";
import { Busy, Button, Failure, sentence, Tabs, Text, toast } from "../../ui";
import "./sign-in.css";

/** By password, by token, or by the one-time link of `hostler web`. */
export function SignIn() {
  const [problem, setProblem] = useState<Problem | null>(null);
  const [way, setWay] = useState("password");
  const { page, parts } = route.value;
  const ticket = page === "sign-in" ? parts[0] : undefined;
  // Decided when the link is opened, because signing in changes the session.
  const [asks, setAsks] = useState("");
  const leave = (): void => go(to(homePage.value), true);
  const enter = async (credentials: Credentials): Promise<void> => {
    setProblem(null);
    try {
      await signIn(credentials);
      if (ticket && me.value) toast(`Signed in as ${titled(me.value)}`);
    } catch (error) {
      const problem = plain(asProblem(error));
      setProblem(problem);
      if (me.value) toast(`${sentence(problem.detail)} ${sentence(problem.next)}`, "bad");
    }
    if (page === "sign-in") leave();
  };
  useEffect(() => {
    // The browser heeds `autofocus` once, and who signs out comes here a second time.
    if (document.activeElement === document.body || !document.activeElement?.isConnected) document.querySelector<HTMLElement>(".sign-in input")?.focus();
  }, []);
  useLayoutEffect(() => {
    document.title = "Sign in · Hostler";
    setAsks(ticket && me.value ? titled(me.value) : "");
    if (ticket && !me.value) void enter({ ticket });
    else if (!ticket && page === "sign-in" && me.value) leave();
  }, [ticket]);
  if (asks && ticket) return <Instead of={asks} stay={leave} enter={() => enter({ ticket })} />;
  return (
    <main class="sign-in">
      <div class="panel stack">
        <h1 class="row">
          <img src="/favicon.svg" alt="" width="32" height="32" /> Sign in to Hostler
        </h1>
        {signedOutBecause.value && !problem && <p class="note warn">{signedOutBecause.value}</p>}
        {problem && <Failure error={problem} />}
        {ticket ? (
          <Busy>Signing in</Busy>
        ) : (
          <Tabs
            label="How to sign in"
            tabs={[
              ["password", "Password"],
              ["token", "Token"],
            ]}
            current={way}
            onChange={setWay}
          >
            {way === "password" ? <ByPassword enter={enter} /> : <ByToken enter={enter} />}
          </Tabs>
        )}
        <p class="soft small">
          From a terminal: <code>hostler web</code> opens this page signed in.
        </p>
      </div>
    </main>
  );
}

/** Without what it is about, which is plain to see here, and as a sentence: "login: name or password is wrong". */
function plain({ status, type, title, detail, next }: Problem): Problem {
  const words = detail.replace(/^(?:login|ticket|token): /, "");
  const whole = `${words.slice(0, 1).toUpperCase()}${words.slice(1)}`;
  return new Problem(status, type, title, whole && !/[.?!]$/.test(whole) ? `${whole}.` : whole, next);
}

/** A link may come from another person, who would see what is done in that account. */
function Instead({ of, stay, enter }: { of: string; stay: () => void; enter: () => Promise<void> }) {
  return (
    <main class="sign-in">
      <div class="panel stack">
        <h1>You are signed in as {of}</h1>
        <p>
          <strong>Sign in as the owner of this link instead?</strong>
        </p>
        <p>Your session here ends then. What you do afterwards is done in the owner's account, and the owner sees it. If you did not ask for this link yourself, stay.</p>
        <Button primary onClick={stay}>
          Stay
        </Button>
        <Button onClick={enter}>Go on</Button>
      </div>
    </main>
  );
}

type Enter = (credentials: Credentials) => Promise<void>;

function ByPassword({ enter }: { enter: Enter }) {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  return (
    <Form onSubmit={() => enter({ name, password })}>
      <Text label="Name" value={name} onInput={setName} autocomplete="username" required focus />
      <Text label="Password" type="password" value={password} onInput={setPassword} autocomplete="current-password" required />
    </Form>
  );
}

function ByToken({ enter }: { enter: Enter }) {
  const [token, setToken] = useState("");
  return (
    <Form onSubmit={() => enter({ token: token.trim() })}>
      <Text
        label="Token"
        type="password"
        value={token}
        onInput={setToken}
        required
        focus
        hint="For example the one in admin.token in the data folder. It is exchanged for a session of 12 hours, and not kept."
      />
    </Form>
  );
}

function Form({ onSubmit, children }: { onSubmit: () => Promise<void>; children: preact.ComponentChildren }) {
  const [busy, setBusy] = useState(false);
  return (
    <form
      class="stack"
      onSubmit={(event) => {
        event.preventDefault();
        setBusy(true);
        void onSubmit().finally(() => setBusy(false));
      }}
    >
      {children}
      <Button submit primary disabled={busy}>
        {busy ? "Signing in …" : "Sign in"}
      </Button>
    </form>
  );
}
