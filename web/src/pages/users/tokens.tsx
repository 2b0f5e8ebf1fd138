// The tokens and sessions of one account: what there is, a new one, and the end of one.
import { useEffect, useState } from "preact/hooks";
import { at, del, get, post } from "../../api";
import type { TokenIssued as Issued, TokenPage, TokenView as Token } from "../../api-types";
import { me, resume, sessionEndsAt } from "../../session";
import { Actions, Ago, attempt, Busy, Button, confirm, Copy, Dialog, Failure, Form, Left, Select, Table, Text } from "../../ui";

const DAY = 86400;
const LIVES = [
  [String(DAY), "1 day"],
  [String(7 * DAY), "1 week"],
  [String(30 * DAY), "30 days"],
  [String(90 * DAY), "90 days"],
  [String(365 * DAY), "1 year"],
  ["", "Until it is revoked"],
] as const;

export function Tokens({ user, enabled }: { user: string; enabled: boolean }) {
  const [tokens, setTokens] = useState<Token[] | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [issuing, setIssuing] = useState(false);
  const own = me.value?.name === user;
  const load = async (): Promise<void> => {
    try {
      setTokens((await get<TokenPage>(at`/v1/users/${user}/tokens`)).items);
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
  };
  useEffect(() => void load(), [user, enabled]);
  return (
    <section class="panel stack" aria-labelledby="users-tokens">
      <div class="row apart">
        <h2 id="users-tokens">Tokens and sessions</h2>
        {enabled && <Button onClick={() => setIssuing(true)}>Issue a token</Button>}
      </div>
      {!enabled && <p class="soft">The account is disabled: it has no tokens, and none can be issued.</p>}
      {problem !== null && <Failure error={problem} again={load} />}
      {!problem && tokens === null && <Busy>Reading tokens</Busy>}
      {enabled && tokens?.length === 0 && (
        <p class="soft">
          None. A program that uses the API needs one: issue it here, or with <code>hostler user token create {user} --name ci --expires 30d</code>.
        </p>
      )}
      {tokens !== null && tokens.length > 0 && <List user={user} own={own} tokens={tokens} again={load} />}
      {issuing && (
        <Issue
          user={user}
          onClose={() => {
            setIssuing(false);
            void load();
          }}
        />
      )}
    </section>
  );
}

function List({ user, own, tokens, again }: { user: string; own: boolean; tokens: Token[]; again: () => Promise<void> }) {
  /** The token of this page, recognised by its last characters; the page does not keep more of it. */
  const isThis = (token: Token): boolean => own && token.purpose === "session" && Math.abs((token.expires_at ?? 0) - sessionEndsAt.value) < 0.001;
  const revoke = async (token: Token): Promise<void> => {
    const what = token.purpose === "session" ? "session" : "token";
    const subject = token.name ? `${what} “${token.name}”` : `${what} ${token.id}`;
    const sure = await confirm({
      title: `Revoke the ${subject} of ${user}?`,
      text: isThis(token) ? "This page uses it: you will be signed out." : "Programs that use it are refused from now on. This cannot be undone.",
      action: "Revoke",
      danger: true,
    });
    if (!sure) return;
    await attempt(() => del(at`/v1/users/${user}/tokens/${token.id}`), `The ${subject} was revoked.`);
    if (isThis(token)) await resume();
    else await again();
  };
  return (
    <Table caption={`Tokens and sessions of ${user}`} head={["Name", "Kind", "Made", "Ends in", <span class="unseen">Revoke</span>]}>
      {tokens.map((token) => (
        <tr key={token.id}>
          <th scope="row" class="users-name">
            {token.name || <span class="soft" title={token.id}>{token.id.slice(0, 8)}…</span>}
          </th>
          <td>{token.purpose === "api" ? "API token" : isThis(token) ? "This session" : "Session"}</td>
          <td>
            <Ago at={token.created_at} />
          </td>
          <td>{token.expires_at === null ? "When it is revoked" : <Left at={token.expires_at} />}</td>
          <td>
            <Button small danger label={`Revoke ${token.name || token.id}`} onClick={() => revoke(token)}>
              Revoke
            </Button>
          </td>
        </tr>
      ))}
    </Table>
  );
}

function Issue({ user, onClose }: { user: string; onClose: () => void }) {
  const [name, setName] = useState("");
  const [life, setLife] = useState(String(30 * DAY));
  const [issued, setIssued] = useState<Issued | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const issue = async (): Promise<void> => {
    setProblem(null);
    try {
      setIssued(await post<Issued>(at`/v1/users/${user}/tokens`, { name, expires_in: life ? Number(life) : null }));
    } catch (error) {
      setProblem(error);
    }
  };
  if (issued) {
    return (
      <Dialog title={`The new token of ${user}`} onClose={onClose} stays>
        <div class="stack">
          <p>The token is shown only once. Keep it where only its user can read it: everyone who has it acts as {user}.</p>
          <Copy text={issued.token} label="Copy" />
          <p class="soft">
            The command line takes it from <code>HOSTLER_TOKEN</code>, programs send it as <code>Authorization: Bearer …</code>.
          </p>
          <div class="dialog-actions">
            <Button primary onClick={onClose}>
              I have kept it
            </Button>
          </div>
        </div>
      </Dialog>
    );
  }
  return (
    <Dialog title={`Issue a token for ${user}`} onClose={onClose}>
      <Form onSubmit={issue}>
        {problem !== null && <Failure error={problem} />}
        <Text label="Name" value={name} onInput={setName} hint="What it is for, so that you know it when you see it: ci, backup." focus />
        <Select label="Counts for" value={life} onChange={setLife} options={LIVES} />
        <Actions onClose={onClose} action="Issue" />
      </Form>
    </Dialog>
  );
}
