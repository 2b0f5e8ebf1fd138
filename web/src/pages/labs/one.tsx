// One user's lab, for a teacher: its state, its events, and the reasons.
import { useEffect, useState } from "preact/hooks";
import { asProblem, type Problem } from "../../api";
import { useLive } from "../../live";
import { nodeLink } from "../../objects";
import { to } from "../../route";
import { attempt, Ago, Busy, Button, Clock, confirm, Empty, Failure, Head } from "../../ui";
import { Terminal } from "../../terminal";
import { mayTeach, mayUse, reallyStop, stop, terminalOf, useLabs, useMachine, useNews, whyOf } from "./data";
import { ExtendDialog, MessageDialog, StartDialog } from "./dialogs";
import { Standing, TimeLeft } from "./teacher";
import { ending, eventWord, localTimes, numbered } from "./words";
import type { Lab, News, Why } from "./types";

export function One({ user }: { user: string }) {
  const { labs, offers, problem, reload } = useLabs();
  const news = useNews(user);
  const [asked, ask] = useState<"start" | "extend" | "message" | null>(null);
  const [terminal, setTerminal] = useState(0);
  useEffect(() => void (document.title = `${user} · Labs · Hostler`), [user]);
  const lab = labs?.find((one) => one.user === user) ?? null;
  const crumbs = <a href={to("labs")}>Labs</a>;
  if (!labs || !offers) {
    return (
      <>
        <Head title={user} crumbs={crumbs} />
        {problem ? <Failure error={problem} again={reload} /> : <Busy>Reading the lab</Busy>}
      </>
    );
  }
  const close = (): void => {
    ask(null);
    void reload();
  };
  const here = lab !== null && lab.phase !== "stopping";
  return (
    <div class="stack">
      <Head title={user} crumbs={crumbs}>
        {here && mayTeach() && (
          <>
            {lab.expires_at !== null && <Button onClick={() => ask("extend")}>Extend…</Button>}
            <Button onClick={() => ask("message")}>Message…</Button>
          </>
        )}
        {here && mayUse(user) && (
          <Button danger onClick={async () => { if (await reallyStop([lab])) await attempt(async () => { await stop(lab); await reload(); }, `The lab of ${user} stops.`); }}>
            Stop…
          </Button>
        )}
      </Head>
      {problem && <Failure error={problem} again={reload} />}
      {lab ? (
        <Facts lab={lab} />
      ) : (
        <Empty title={`${user} has no lab now`}>
          {ending(news ?? []) && <p>{ending(news ?? [])}</p>}
          {mayUse(user) && offers.items.length > 0 && <Button onClick={() => ask("start")}>Start one</Button>}
        </Empty>
      )}
      {here && mayUse(user) && lab.available && terminal !== lab.generation && (
        <div>
          <Button onClick={async () => { if (await takesOver(user)) setTerminal(lab.generation); }}>Open the terminal…</Button>
        </div>
      )}
      {here && terminal === lab.generation && <Terminal open={(empty) => terminalOf(user, empty)} protocol="json" label={`Terminal of the lab of ${user}`} />}
      <div class="two">
        <Story news={news} />
        {(lab || (news?.length ?? 0) > 0) && <Reasons user={user} />}
      </div>
      {asked === "start" && <StartDialog offers={offers} user={user} onClose={() => ask(null)} onDone={close} />}
      {asked === "extend" && lab && <ExtendDialog labs={[lab]} onClose={close} />}
      {asked === "message" && lab && <MessageDialog labs={[lab]} onClose={close} />}
    </div>
  );
}

/** There is one terminal at a time, and the newer one has it. */
function takesOver(user: string): Promise<boolean> {
  return confirm({
    title: `Open the terminal of ${user}?`,
    text: `A lab has one terminal. If ${user} has it open, you take it over with its shell, and ${user} sees a message. ${user} has to connect again to take it back.`,
    action: "Open it",
  });
}

function Facts({ lab }: { lab: Lab }) {
  const machine = useMachine(lab);
  return (
    <dl class="facts panel">
      <dt>Lab</dt>
      <dd>
        {numbered(lab)}
      </dd>
      <dt>State</dt>
      <dd>
        <Standing lab={lab} /> {lab.detail && <span class="soft">{localTimes(lab.detail)}</span>}
      </dd>
      <dt>Time left</dt>
      <dd>
        <TimeLeft lab={lab} />
        {lab.expires_at !== null && (
          <span class="soft">
            {" "}
            until <Clock at={lab.expires_at} />
          </span>
        )}
      </dd>
      <dt>Asked for</dt>
      <dd>
        <Ago at={lab.requested_at} />
      </dd>
      {lab.vm && (
        <>
          <dt>Machine</dt>
          <dd>
            <a href={to("vms", ["labs", lab.user, lab.vm])}>{machine}</a> {lab.cloud_status && <span class="soft">{lab.cloud_status}</span>}
          </dd>
        </>
      )}
      {lab.node && (
        <>
          <dt>Node</dt>
          <dd>
            <a href={nodeLink(lab.node)}>{lab.node}</a>
          </dd>
        </>
      )}
      {lab.address && (
        <>
          <dt>Address</dt>
          <dd>
            <code>
              ssh {lab.port === 22 ? "" : `-p ${lab.port} `}
              {lab.ssh_user}@{lab.address}
            </code>
          </dd>
        </>
      )}
    </dl>
  );
}

function Story({ news }: { news: News[] | null }) {
  return (
    <section class="panel" aria-labelledby="labs-story">
      <h2 id="labs-story">What happened</h2>
      {!news ? (
        <Busy>Reading</Busy>
      ) : news.length === 0 ? (
        <p class="soft">Nothing that is remembered. What happens is kept for a day after the last lab.</p>
      ) : (
        <ul class="labs-story" aria-live="polite">
          {[...news].reverse().map((one) => (
            <li key={one.number}>
              <strong>{eventWord(one.event)}</strong>
              {one.labId !== null && ` (lab ${one.labId})`}
              {one.reason && `: ${localTimes(one.reason)}`} <span class="soft small"><Ago at={one.at} /></span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

/** How it came to be as it is, the newest first. */
function Reasons({ user }: { user: string }) {
  const [why, setWhy] = useState<Why | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  useLive(["lab"], async () => {
    try {
      setWhy(await whyOf(user));
      setProblem(null);
    } catch (error) {
      setProblem(asProblem(error));
    }
  });
  return (
    <section class="panel" aria-labelledby="labs-why">
      <h2 id="labs-why">Why it is so</h2>
      {problem ? (
        problem.status === 404 ? <p class="soft">Nothing was decided about a lab of {user} yet.</p> : <Failure error={problem} />
      ) : !why ? (
        <Busy>Reading</Busy>
      ) : (
        <>
          {why.state && <p>The lab of {user} {localTimes(why.state)}.</p>}
          <ul class="labs-story">
            {why.steps.map((step) => (
              <li key={step.id}>
                {step.subject !== `lab ${user}` && `${step.subject}: `}
                {localTimes(step.why)} <span class="soft small">{step.actor}, {step.at === null ? "at a time that is not known any more" : <Ago at={step.at} />}</span>
              </li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}
