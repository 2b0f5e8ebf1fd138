// One's own account: what one may do, the password, the session, and one's tokens.
import { useEffect, useState } from "preact/hooks";
import { at, get, patch } from "../../api";
import type { Overview } from "../../api-types";
import { withoutStream } from "../../live";
import { me, sessionEndsAt, signIn, signOut, type User } from "../../session";
import { attempt, Button, Clock, Failure, Form, Head, Left, Text, toast } from "../../ui";
import { type Theme, theme } from "../../theme";
import { About } from "../users";
import { SHORTEST } from "../users/form";
import { Tokens } from "../users/tokens";
import "./account.css";

export default function Account() {
  const user = me.value;
  if (!user) return null;
  return (
    <>
      <Head title="Your account">
        <Button onClick={() => attempt(signOut)}>Sign out here</Button>
      </Head>
      <div class="stack">
        <div class="two">
          <div class="stack">
            <Session user={user} />
            <About user={user} />
          </div>
          <div class="stack account-forms">
            <FullName user={user} />
            <Password user={user} />
          </div>
        </div>
        <Tokens user={user.name} enabled={user.enabled} />
        <p class="soft small">
          <a href="/docs">The API</a> · <a href="/licences.txt">Licences of what this page is made of</a>
        </p>
      </div>
    </>
  );
}

function Session({ user }: { user: User }) {
  const [now, setNow] = useState({ at: 0, simulation: false });
  useEffect(() => {
    // Where that cannot be read, it is taken for what nearly every server is.
    get<Overview>("/v1/overview").then(setNow, () => undefined);
  }, []);
  return (
    <section class="panel" aria-label="This session">
      <label class="account-colours">
        Colours{" "}
        <select value={theme.value} onChange={(event) => (theme.value = event.currentTarget.value as Theme)}>
          <option value="system">System default</option>
          <option value="light">Light</option>
          <option value="dark">Dark</option>
        </select>
      </label>
      <p>
        Signed in as <strong class="account-name">{user.name}</strong>.
      </p>
      <p>
        {now.simulation ? (
          <>
            This session ends when <Clock at={sessionEndsAt.value} /> has come in the simulation, where it is <Clock at={now.at} /> now: its time is not ours.
          </>
        ) : (
          <>
            This session ends in <Left at={sessionEndsAt.value} />, at <Clock at={sessionEndsAt.value} />.
          </>
        )}
      </p>
    </section>
  );
}

function FullName({ user }: { user: User }) {
  const [text, setText] = useState(user.full_name);
  const save = (): Promise<boolean> =>
    attempt(async () => {
      me.value = await patch<User>(at`/v1/users/${user.name}`, { full_name: text });
    }, "Your full name was changed.");
  return (
    <Form class="panel stack" label="Change your full name" onSubmit={save}>
      <Text label="Full name" value={text} onInput={setText} autocomplete="name" hint="For people to know you by; you sign in with your name." />
      <div>
        <Button submit>Save</Button>
      </div>
    </Form>
  );
}

function Password({ user }: { user: User }) {
  const [old, setOld] = useState("");
  const [password, setPassword] = useState("");
  const [again, setAgain] = useState("");
  const [tried, setTried] = useState(false);
  const [problem, setProblem] = useState<unknown>(null);
  // Who finds a page that was left open does not know the password.
  const needsOld = user.has_password;
  const missing = needsOld && !old ? "Your present password is needed." : null;
  const short = password.length < SHORTEST ? `At least ${SHORTEST} characters.` : null;
  const other = password !== again ? "The two are not the same." : null;
  const save = async (): Promise<void> => {
    setTried(true);
    if (missing || short || other) return;
    setProblem(null);
    try {
      const changePassword = async (): Promise<void> => {
        await patch<User>(at`/v1/users/${user.name}`, needsOld ? { password, old_password: old } : { password });
        // This session has ended with all others.
        await signIn({ name: user.name, password });
      };
      await withoutStream(changePassword, { goOn: "always" });
      toast("Your password was changed. All your other sessions have ended.");
      setOld("");
      setPassword("");
      setAgain("");
      setTried(false);
    } catch (error) {
      setProblem(error);
    }
  };
  return (
    <Form class="panel stack" label="Change your password" onSubmit={save}>
      {problem !== null && <Failure error={problem} />}
      <input class="account-hidden" type="text" name="username" autocomplete="username" value={user.name} readOnly tabIndex={-1} aria-hidden="true" />
      {needsOld && <Text label="Present password" type="password" value={old} onInput={setOld} autocomplete="current-password" wrong={tried ? missing : null} />}
      <Text label="New password" type="password" value={password} onInput={setPassword} autocomplete="new-password" wrong={tried ? short : null} hint={`At least ${SHORTEST} characters.`} />
      <Text label="New password again" type="password" value={again} onInput={setAgain} autocomplete="new-password" wrong={tried ? other : null} />
      <p class="soft small">All your other sessions end with it. API tokens stay.</p>
      <div>
        <Button submit>{user.has_password ? "Change password" : "Set a password"}</Button>
      </div>
    </Form>
  );
}
