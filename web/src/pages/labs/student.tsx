// The one page of a student: which labs there are, start, what happens, the terminal, and the time left.
import { useEffect, useRef, useState } from "preact/hooks";
import { clock } from "../../clock";
import { attempt, Ago, Busy, Button, Clock, Empty, Failure, Head, Left, State, Steps, Text } from "../../ui";
import { span } from "../../ui/time";
import { Terminal } from "../../terminal";
import { mayUse, reallyStop, start, stop, terminalOf, useLabs, useNews } from "./data";
import { afterwards, ending, happening, offerTitle, outlook, shapeOf, stateOf, steps, titleOf } from "./words";
import type { Lab, News, Offer, Offers } from "./types";

/** Others who wait move on without an event of one's own, in milliseconds. */
const LOOK_AGAIN = 3000;
const MESSAGES = 5;

/** Addresses of the server itself: on a student's own machine they lead nowhere. */
const LOOPBACK = /^(127\.|::1$|localhost$)/;

export function Student({ user }: { user: string }) {
  const { labs, offers, problem, reload } = useLabs();
  const news = useNews(user);
  const lab = labs?.find((one) => one.user === user) ?? null;
  const settled = lab !== null && lab.phase !== "waiting";
  useEffect(() => {
    if (settled) return;
    const timer = setInterval(() => void reload(), LOOK_AGAIN);
    return () => clearInterval(timer);
  }, [settled]);
  if (!labs || !offers) {
    return (
      <>
        <Head title="Your lab" />
        {problem ? <Failure error={problem} again={reload} /> : <Busy>Looking for your lab</Busy>}
      </>
    );
  }
  return (
    <div class="stack">
      <Head title={lab ? titleOf(lab) : "Your lab"} />
      {problem && <Failure error={problem} again={reload} />}
      <Messages news={news ?? []} lab={lab} />
      {lab ? <Running lab={lab} offers={offers} reload={reload} key={lab.generation} /> : <Choice user={user} offers={offers} ended={ending(news ?? [])} reload={reload} />}
    </div>
  );
}

// Before

function Choice({ user, offers, ended, reload }: { user: string; offers: Offers; ended: string; reload: () => Promise<void> }) {
  if (!offers.items.length) {
    return (
      <Empty title="There are no labs yet">
        <p>Your teacher has to say which labs there are. Come back then; this page shows them by itself.</p>
      </Empty>
    );
  }
  return (
    <>
      {ended && (
        <p class="note" role="status">
          {ended}
        </p>
      )}
      {!mayUse(user) && <p class="note">You see the lab of {user}. To start it takes the account of {user}, or the right modify_workloads.</p>}
      <p>A lab is your own machine for a limited time. Start one, and a terminal opens on this page.</p>
      <ul class="grid labs-cards" aria-label="Labs that there are">
        {offers.items.map((offer) => (
          <Card key={offer.labId} offer={offer} offers={offers} may={mayUse(user)} begin={(labId) => attempt(async () => { await start(user, labId); await reload(); })} />
        ))}
      </ul>
    </>
  );
}

function Card({ offer, offers, may, begin }: { offer: Offer; offers: Offers; may: boolean; begin: (labId: number) => Promise<boolean> }) {
  const { template } = offer;
  const title = offerTitle(offer);
  const [number, setNumber] = useState("1");
  const chosen = offer.labId ?? Number(number);
  const right = Number.isInteger(chosen) && chosen >= 1;
  return (
    <li class="panel labs-card">
      <h2>{title}</h2>
      <p class="soft">
        {shapeOf(template)}; for {span(template.life)}
      </p>
      <p>{outlook(offers, offer)}</p>
      {may && offer.labId === null && <Text label="Number of the lab" type="number" min={1} value={number} onInput={setNumber} hint="As your teacher told you." wrong={right ? null : "Write a whole number from 1 on."} />}
      {may && (
        <div class="labs-big">
          <Button primary label={`Start ${title}`} disabled={!right} onClick={() => begin(chosen)}>
            Start
          </Button>
        </div>
      )}
    </li>
  );
}

// While it runs

function Running({ lab, offers, reload }: { lab: Lab; offers: Offers; reload: () => Promise<void> }) {
  const [look, word] = stateOf(lab);
  const template = (offers.items.find((offer) => offer.labId === lab.labId) ?? offers.items.find((offer) => offer.labId === null))?.template;
  // The terminal stays once it was there: what is on its screen must not go because a machine is silent for a moment.
  const opened = useRef(false);
  if (lab.available) opened.current = true;
  const may = mayUse(lab.user);
  return (
    <>
      <div class="panel row apart labs-bar">
        <State look={look}>{word}</State>
        <span class="labs-left">
          {lab.expires_at === null ? "Its time has not begun" : <>Time left: <strong><Left at={lab.expires_at} over="over" /></strong></>}
        </span>
        {may && lab.phase !== "stopping" && (
          <Button danger onClick={async () => { if (await reallyStop([lab], true)) await attempt(async () => { await stop(lab); await reload(); }); }}>
            {lab.phase === "waiting" ? "Leave the queue" : "Stop"}
          </Button>
        )}
      </div>
      <EndsSoon lab={lab} warn={template?.warn ?? 300} />
      {(!lab.available || lab.phase === "stopping") && <Progress lab={lab} />}
      {opened.current && may && lab.phase !== "stopping" && (
        <Terminal open={(empty) => terminalOf(lab.user, empty)} protocol="json" label={`Terminal of ${titleOf(lab)}`} shut="It did not open. The lab may be gone, or the server cannot take more terminals now." />
      )}
      <section class="labs-about">
        <h2>What happens at the end</h2>
        <p>{afterwards(lab.grace)}</p>
        {lab.available && lab.address && !LOOPBACK.test(lab.address) && (
          <p class="soft small">
            By SSH, if your key is in it: <code>ssh {lab.port === 22 ? "" : `-p ${lab.port} `}{lab.ssh_user}@{lab.address}</code>
          </p>
        )}
      </section>
    </>
  );
}

function Progress({ lab }: { lab: Lab }) {
  return (
    <section class="panel" aria-label="How far it is">
      <p class="labs-now" role="status">
        {happening(lab)}
      </p>
      {lab.phase !== "stopping" && (
        <Steps steps={steps(lab).map(([name, state]) => ({ name, state }))} />
      )}
    </section>
  );
}

/** Announced once, with the time: a screen reader must not read a countdown every second. */
function EndsSoon({ lab, warn }: { lab: Lab; warn: number }) {
  const end = lab.expires_at;
  if (end === null || lab.phase === "stopping") return null;
  const left = end - clock.value;
  if (left > warn) return null;
  return (
    <div class="note warn" role="alert">
      <p>
        <strong>{left > 0 ? "Your lab ends soon." : "The time of your lab is over."}</strong> {left > 0 ? "It ends" : "It ended"} at <Clock at={end} />. Copy elsewhere what you want to keep
        {lab.grace > 0 ? `; it goes ${span(lab.grace)} after that` : ""}. Your teacher can extend it.
      </p>
    </div>
  );
}

/** What teachers said, the newest first. */
function Messages({ news, lab }: { news: News[]; lab: Lab | null }) {
  const [closed, close] = useState(0);
  const since = lab?.requested_at ?? Number.POSITIVE_INFINITY;
  const said = news.filter((one) => one.event === "message" && one.at >= since && one.number > closed).reverse();
  return (
    <div role="log" aria-label="Messages of your teacher" class="stack labs-messages">
      {said.slice(0, MESSAGES).map((one, i) => (
        <div class="note good row apart" key={one.number}>
          <p>
            <strong>Your teacher:</strong> {one.reason} <span class="soft small"><Ago at={one.at} /></span>
          </p>
          {i === 0 && (
            <Button small quiet onClick={() => close(one.number)}>
              {said.length > 1 ? "Close these messages" : "Close this message"}
            </Button>
          )}
        </div>
      ))}
    </div>
  );
}
