// Accounts: all of them (#/users), and one (#/users/NAME).
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { all, at, changeShown, del, get, patch } from "../../api";
import { go, route, setQuery, to } from "../../route";
import { can, me, resume, type User } from "../../session";
import { Ago, attempt, Busy, Button, Clock, confirm, count, Empty, Failure, Head, State, Table, Text, toast } from "../../ui";
import { PasswordForm, UserForm } from "./form";
import { Tokens } from "./tokens";
import { inShort, PROTECTED, RIGHTS, untouchable } from "./words";
import "./users.css";

/** Longer lists are cut: users search instead. */
const MOST = 300;

export default function Users() {
  const [name] = route.value.parts;
  if (!can("manage_accounts")) return <NotAllowed />;
  return name ? <One key={name} name={name} /> : <List />;
}

function NotAllowed() {
  return (
    <>
      <Head title="Users" />
      <div class="note warn" role="alert">
        <p>
          <strong>Accounts are for those who have the right manage_accounts, and you have not.</strong>
        </p>
        <p>
          Ask an account manager. Your own settings are at <a href={to("account")}>your account</a>.
        </p>
      </div>
    </>
  );
}

function List() {
  const [users, setUsers] = useState<User[] | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [making, setMaking] = useState(false);
  const load = async (): Promise<void> => {
    try {
      setUsers(await all<User>("/v1/users"));
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  };
  useEffect(() => void load(), []);
  const sought = (route.value.query.get("q") ?? "").toLowerCase();
  const found = users?.filter((user) => [user.name, user.full_name, ...user.memberships].some((text) => text.toLowerCase().includes(sought))) ?? [];
  return (
    <>
      <Head title="Users">
        <Button primary onClick={() => setMaking(true)}>
          New account
        </Button>
      </Head>
      <div class="stack">
        {problem !== null && <Failure error={problem} again={load} />}
        {users === null && problem === null && <Busy>Reading accounts</Busy>}
        {users !== null && users.length > 1 && (
          <>
            <search class="users-search">
              <Text label="Search" type="search" value={route.value.query.get("q") ?? ""} onInput={(q) => setQuery({ q })} placeholder="Name, full name or membership" />
            </search>
            <p class="soft small" role="status">
              {sought ? `${found.length.toLocaleString("en")} of ${count(users.length, "account")}` : count(users.length, "account")}
              {found.length > MOST && `; the first ${MOST} are shown`}
            </p>
          </>
        )}
        {found.length > 0 && <Rows users={found.slice(0, MOST)} />}
        {users !== null && found.length === 0 && sought && (
          <Empty title={`No account matches “${route.value.query.get("q")}”`}>
            <Button onClick={() => setQuery({ q: "" })}>Show all</Button>
          </Empty>
        )}
        {users?.length === 1 && (
          <Empty title="There is one account so far">
            <p>Give each person and each program an account of their own: what they do is in the audit under its name, and each can be ended alone.</p>
            <Button primary onClick={() => setMaking(true)}>
              Make an account
            </Button>
            <code>hostler user create ada --role member --member acme --password</code>
          </Empty>
        )}
      </div>
      {making && (
        <UserForm
          onClose={() => setMaking(false)}
          onDone={(user) => {
            setMaking(false);
            toast(`The account ${user.name} was made.`);
            go(to("users", [user.name]));
          }}
        />
      )}
    </>
  );
}

function Rows({ users }: { users: User[] }) {
  return (
    <Table caption="Accounts" head={["Name", "Full name", "State", "May", "Memberships", "Made"]}>
      {users.map((user) => (
        <tr key={user.name}>
          <th scope="row" class="users-name">
            <a href={to("users", [user.name])}>{user.name}</a>
          </th>
          <td class="users-name">{user.full_name}</td>
          <td>
            <Standing user={user} />
          </td>
          <td>{inShort(user.rights)}</td>
          <td class="users-name">{user.memberships.join(", ") || <span class="soft">none</span>}</td>
          <td>
            <Ago at={user.created_at} />
          </td>
        </tr>
      ))}
    </Table>
  );
}

function Standing({ user }: { user: User }) {
  return (
    <span class="row">
      <State look={user.enabled ? "good" : "idle"}>{user.enabled ? "Enabled" : "Disabled"}</State>
      {user.protected && <span class="tag">protected</span>}
    </span>
  );
}

function One({ name }: { name: string }) {
  const [user, setUser] = useState<User | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const load = async (): Promise<void> => {
    try {
      setUser(await get<User>(at`/v1/users/${name}`));
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  };
  useEffect(() => void load(), []);
  useLayoutEffect(() => {
    document.title = `${user?.name ?? name} · Users · Hostler`;
    return () => {
      document.title = "Users · Hostler";
    };
  }, [user?.name]);
  const changed = (now: User): void => {
    setUser(now);
    if (now.name === me.value?.name) me.value = now;
  };
  const mine = me.value;
  if (!mine) return null;
  const barred = user && untouchable(mine, user);
  return (
    <>
      <Head title={user?.name ?? name} crumbs={<a href={to("users")}>Users</a>}>
        {user && !barred && <Actions user={user} own={user.name === mine.name} onChange={changed} onFail={load} />}
      </Head>
      <div class="stack">
        {problem !== null && <Failure error={problem} again={load} />}
        {!user && problem === null && <Busy>Reading the account</Busy>}
        {user && <About user={user} />}
        {barred && <p class="note">{barred}</p>}
        {user && !barred && <Tokens user={user.name} enabled={user.enabled} />}
      </div>
    </>
  );
}

/** What an account is and may. */
export function About({ user }: { user: User }) {
  return (
    <section class="panel stack" aria-label="The account">
      <dl class="facts">
        <dt>Full name</dt>
        <dd>{user.full_name || <span class="soft">not given</span>}</dd>
        <dt>State</dt>
        <dd>
          <Standing user={user} />
        </dd>
        <dt>Signs in with</dt>
        <dd>{user.has_password ? "a password, or tokens" : "tokens alone: it has no password"}</dd>
        <dt>Memberships</dt>
        <dd>
          <Reach memberships={user.memberships} />
        </dd>
        <dt>Made</dt>
        <dd>
          <Clock at={user.created_at} />
        </dd>
      </dl>
      <div>
        <h2>May</h2>
        <ul class="users-rights">
          <li>Look at what belongs to its memberships, and at nodes, racks and events.</li>
          {RIGHTS.filter(([right]) => user.rights[right]).map(([right, title, hint]) => (
            <li key={right}>
              <strong>{title}.</strong> {hint}
            </li>
          ))}
        </ul>
      </div>
      {user.protected && <p class="note">{PROTECTED}</p>}
    </section>
  );
}

function Reach({ memberships }: { memberships: string[] }) {
  if (memberships.includes("*")) return <>everything (*)</>;
  if (!memberships.length) return <span class="soft">none</span>;
  return (
    <>
      {memberships.map((one, i) => (
        <span key={one}>
          {i > 0 && ", "}
          <code>{one}</code>
        </span>
      ))}
    </>
  );
}

/** What of an account one looks at before one disables or deletes it. */
const DECIDED: (keyof User)[] = ["enabled", "rights", "memberships", "created_at"];

function Actions({ user, own, onChange, onFail }: { user: User; own: boolean; onChange: (user: User) => void; onFail: () => Promise<void> }) {
  const [open, setOpen] = useState<"" | "change" | "password">("");
  const path = at`/v1/users/${user.name}`;
  const enable = async (enabled: boolean): Promise<void> => {
    const about = own ? "It is your own: you will be signed out." : "It can be enabled again; its tokens do not come back.";
    const sure = enabled || (await confirm({ title: `Disable ${user.name}?`, text: `All its sessions and tokens end for good. ${about}`, action: "Disable", danger: true }));
    if (!sure) return;
    const done = await attempt(async () => onChange(await changeShown(user, DECIDED, path, (extra) => patch<User>(path, { enabled }, extra))), `${user.name} is ${enabled ? "enabled" : "disabled"}.`);
    if (!done) await onFail();
    else if (own && !enabled) await resume();
  };
  const remove = async (): Promise<void> => {
    const about = own ? " It is your own: you will be signed out." : "";
    const text = `The account goes, and all its tokens and sessions with it. What it made stays.${about} This cannot be undone.`;
    if (!(await confirm({ title: `Delete ${user.name}?`, text, action: "Delete", danger: true, typed: user.name }))) return;
    const done = await attempt(() => changeShown(user, DECIDED, path, (extra) => del(path, extra)), `The account ${user.name} is gone.`);
    if (!done) await onFail();
    else if (own) await resume();
    else go(to("users"));
  };
  const changed = (now: User, news: string): void => {
    setOpen("");
    toast(news);
    onChange(now);
  };
  return (
    <div class="row">
      <Button onClick={() => setOpen("change")}>Change</Button>
      {own ? (
        <a class="button" href={to("account")}>
          Your password
        </a>
      ) : (
        <Button onClick={() => setOpen("password")}>Set password</Button>
      )}
      {!user.protected && <Button onClick={() => enable(!user.enabled)}>{user.enabled ? "Disable" : "Enable"}</Button>}
      {!user.protected && (
        <Button danger onClick={remove}>
          Delete
        </Button>
      )}
      {open === "change" && <UserForm user={user} onClose={() => setOpen("")} onDone={(now) => changed(now, `${now.name} was changed.`)} />}
      {open === "password" && <PasswordForm user={user} onClose={() => setOpen("")} onDone={(now) => changed(now, `The password of ${now.name} was set.`)} />}
    </div>
  );
}
