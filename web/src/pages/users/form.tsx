// Making an account, changing one, and setting a password.
import { useState } from "preact/hooks";
import { at, changeShown, patch, post } from "../../api";
import { me, type Right, type User } from "../../session";
import { Actions, Button, Check, Dialog, Failure, Form, Select, Text } from "../../ui";
import { covers, lacking, NONE, PROTECTED, RIGHTS, type Rights, roleOf, ROLES, wrongMembership } from "./words";

export const SHORTEST = 8;
/** What the form shows of an account, and writes: where one of these is another by now, the change is refused. */
const SHOWN: (keyof User)[] = ["full_name", "rights", "memberships", "created_at"];

/** A new account, or what there is to change of one. `onDone` gets it as it is then. */
export function UserForm({ user, onClose, onDone }: { user?: User; onClose: () => void; onDone: (user: User) => void }) {
  const mine = me.value;
  const [name, setName] = useState("");
  const [fullName, setFullName] = useState(user?.full_name ?? "");
  const [password, setPassword] = useState("");
  const [rights, setRights] = useState<Rights>(user?.rights ?? NONE);
  const [memberships, setMemberships] = useState<string[]>(user?.memberships ?? []);
  const [typed, setTyped] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const [tried, setTried] = useState(false);
  if (!mine) return null;
  const wrongTyped = typed ? wrongMembership(mine, typed) : null;
  const wrongPassword = password && password.length < SHORTEST ? `At least ${SHORTEST} characters.` : null;
  const save = async (): Promise<void> => {
    setTried(true);
    if (wrongPassword || wrongTyped) return;
    const wanted = typed ? [...new Set([...memberships, typed])] : memberships;
    const shared = { full_name: fullName, rights, memberships: wanted };
    setProblem(null);
    try {
      if (user) {
        const path = at`/v1/users/${user.name}`;
        onDone(await changeShown(user, SHOWN, path, (extra) => patch<User>(path, shared, extra)));
      } else onDone(await post<User>("/v1/users", { ...shared, name, password: password || null }));
    } catch (error) {
      setProblem(error);
    }
  };
  return (
    <Dialog title={user ? `Change ${user.name}` : "New account"} onClose={onClose}>
      <Form onSubmit={save}>
        {problem !== null && <Failure error={problem} />}
        {user?.protected && <p class="note">{PROTECTED}</p>}
        {!user && <Text label="Name" value={name} onInput={setName} required focus hint="To sign in with; upper and lower case are the same. It cannot be changed later." />}
        <Text label="Full name" value={fullName} onInput={setFullName} focus={Boolean(user)} />
        {!user && (
          <Text
            label="Password"
            type="password"
            value={password}
            onInput={setPassword}
            autocomplete="new-password"
            wrong={tried ? wrongPassword : null}
            hint={`At least ${SHORTEST} characters. Without one the account is used with tokens alone.`}
          />
        )}
        <RightsField mine={mine} held={user?.protected ? user.rights : NONE} rights={rights} onChange={setRights} />
        <Memberships
          kept={user?.protected ? user.memberships : []}
          memberships={memberships}
          onChange={setMemberships}
          typed={typed}
          onType={setTyped}
          wrong={tried ? wrongTyped : null}
          onAdd={() => {
            setTried(true);
            if (wrongMembership(mine, typed)) return;
            setMemberships([...new Set([...memberships, typed])]);
            setTyped("");
            setTried(false);
          }}
        />
        <Actions onClose={onClose} action={user ? "Save" : "Create"} />
      </Form>
    </Dialog>
  );
}

interface RightsFieldProps {
  mine: User;
  /** Rights that cannot be taken away. */
  held: Rights;
  rights: Rights;
  onChange: (rights: Rights) => void;
}

/** By role, or one by one; only what one has oneself can be given. */
function RightsField({ mine, held, rights, onChange }: RightsFieldProps) {
  const given = RIGHTS.filter(([right]) => mine.rights[right]);
  const roles = ROLES.filter(([, bundle]) => !lacking(mine.rights, bundle).length && !lacking(bundle, held).length);
  const role = roleOf(rights);
  const chosen = (name: string): void => onChange(ROLES.find(([one]) => one === name)?.[1] ?? rights);
  return (
    <fieldset class="stack">
      <legend>Rights</legend>
      <Select
        label="Role"
        value={role}
        onChange={chosen}
        options={[...roles.map(([name]) => name), ...(role ? [] : [["", "Chosen one by one"] as const])]}
        hint="Fills in the rights below. Who has none of them may look."
      />
      {given.map(([right, title, hint]) => (
        <Check
          key={right}
          label={title}
          hint={held[right] ? `${hint} A protected account keeps it.` : hint}
          checked={rights[right]}
          disabled={held[right]}
          onChange={(on) => onChange({ ...rights, [right]: on } satisfies Record<Right, boolean>)}
        />
      ))}
      {given.length < RIGHTS.length && <p class="soft small">You can give the rights that you have, and no others.</p>}
    </fieldset>
  );
}

interface MembershipsProps {
  /** Those that cannot be taken away. */
  kept: string[];
  memberships: string[];
  onChange: (memberships: string[]) => void;
  typed: string;
  onType: (text: string) => void;
  wrong: string | null;
  onAdd: () => void;
}

function Memberships({ kept, memberships, onChange, typed, onType, wrong, onAdd }: MembershipsProps) {
  return (
    <fieldset class="stack">
      <legend>Memberships</legend>
      {memberships.length === 0 && <p class="soft">None: the account sees no machine, lab or workload of any project.</p>}
      <ul class="users-memberships" aria-label="Memberships">
        {memberships.map((one) => (
          <li key={one} class="row">
            <code>{one}</code>
            {one === "*" && <span class="soft small">everything</span>}
            {!covers(kept, one) && (
              <Button small label={`Remove ${one}`} onClick={() => onChange(memberships.filter((other) => other !== one))}>
                Remove
              </Button>
            )}
          </li>
        ))}
      </ul>
      <div class="users-add">
        <Text label="Add a membership" value={typed} onInput={(text) => onType(text.trim())} wrong={wrong} placeholder="acme/web" mono hint="An org (acme), one project of it (acme/web), or * for everything." />
        <Button label="Add this membership" onClick={onAdd}>
          Add
        </Button>
      </div>
    </fieldset>
  );
}

/** Set the password of a user. */
export function PasswordForm({ user, onClose, onDone }: { user: User; onClose: () => void; onDone: (user: User) => void }) {
  const [password, setPassword] = useState("");
  const [problem, setProblem] = useState<unknown>(null);
  const [tried, setTried] = useState(false);
  const wrong = password.length < SHORTEST ? `At least ${SHORTEST} characters.` : null;
  const save = async (): Promise<void> => {
    setTried(true);
    if (wrong) return;
    setProblem(null);
    try {
      onDone(await patch<User>(at`/v1/users/${user.name}`, { password }));
    } catch (error) {
      setProblem(error);
    }
  };
  return (
    <Dialog title={`Set the password of ${user.name}`} onClose={onClose}>
      <Form onSubmit={save}>
        {problem !== null && <Failure error={problem} />}
        <p>All sessions of {user.name} end with it; API tokens stay.</p>
        <Text label="New password" type="password" value={password} onInput={setPassword} autocomplete="new-password" wrong={tried ? wrong : null} focus />
        <Actions onClose={onClose} action="Set" />
      </Form>
    </Dialog>
  );
}
