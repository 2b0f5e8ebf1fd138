// A simulation's time, its faults and its repairs.
import { useState } from "preact/hooks";
import { asProblem, at, del, post, put } from "../../api";
import { can } from "../../session";
import { attempt, Button, Check, count, Failure, Form, Select, State, Text, toast } from "../../ui";
import { byKey, fold } from "./floor";
import { kinds, refresh, sim, simProblem } from "./simulation";
import { virtual } from "./time";
import type { FaultKind, Mode, Proposal, Sim } from "./types";
import { address } from "./view";

const UNITS = [
  ["1", "seconds"],
  ["60", "minutes"],
  ["3600", "hours"],
  ["86400", "days"],
] as const;
const RATES = [
  ["0.1", "a tenth of real time"],
  ["1", "as real time"],
  ["10", "10 times as fast"],
  ["60", "a minute each second"],
  ["600", "10 minutes each second"],
  ["3600", "an hour each second"],
] as const;
const MODES: readonly (readonly [Mode, string])[] = [
  ["manual", "Paused"],
  ["measured", "By the clock"],
  ["no_wait", "Does not wait"],
];

/** Do it, then look what became of it. */
async function acted(action: () => Promise<unknown>, done?: string): Promise<void> {
  await attempt(action, done);
  await refresh();
}

export function TimeBar() {
  const view = sim.value;
  if (!view) return simProblem.value ? <Failure error={simProblem.value} again={refresh} /> : null;
  return (
    <section class="panel racks-time" aria-label="Time of the simulation">
      <div class="racks-clock">
        <span class="soft small">Simulation {view.name}</span>
        <span class="racks-now number" role="timer" aria-label="Virtual time">
          {virtual(view.now)}
        </span>
        <span class="soft small">{new Date(view.wall * 1000).toLocaleString("en-GB", { timeZone: "UTC", dateStyle: "long", timeStyle: "medium" })} UTC</span>
      </div>
      {can("step_time") ? <Moving view={view} /> : <p class="soft">{told(view)} Moving time takes the right step_time and the membership *.</p>}
      {view.failures.length > 0 && (
        <div class="note bad" role="alert">
          <p>
            <strong>The simulator itself failed.</strong> That is a bug, of the simulator or of what it runs.
          </p>
          {view.failures.map((text) => (
            <p key={text}>{text}</p>
          ))}
        </div>
      )}
    </section>
  );
}

function told(view: Sim): string {
  if (view.mode === "manual") return "Time is paused.";
  return view.mode === "measured" ? `Time goes ${view.rate} times as fast as the clock.` : "Time does not wait.";
}

function Moving({ view }: { view: Sim }) {
  const change = (mode: Mode, rate?: number): Promise<void> =>
    acted(() => put("/v1/sim/mode", { mode, ...(rate && mode === "measured" ? { rate } : {}), epoch: view.epoch }));
  const rates = RATES.some(([value]) => Number(value) === view.rate) ? RATES : [...RATES, [String(view.rate), `${view.rate} times as fast`] as const];
  return (
    <div class="racks-moving">
      <div class="row">
        <div class="racks-modes" role="group" aria-label="How time goes">
          {MODES.map(([mode, title]) => (
            <Button key={mode} pressed={view.mode === mode} onClick={() => change(mode)}>
              {title}
            </Button>
          ))}
        </div>
        {view.mode === "measured" && <Select label="Rate" value={String(view.rate)} onChange={(value) => void change("measured", Number(value))} options={rates} />}
      </div>
      {view.mode === "manual" ? <Steps view={view} /> : <p class="soft small">Pause time to go step by step.</p>}
    </div>
  );
}

function Steps({ view }: { view: Sim }) {
  const [amount, setAmount] = useState("5");
  const [unit, setUnit] = useState("60");
  const step = (body: { seconds: number } | { events: number }): Promise<void> => acted(() => post("/v1/sim/step", { ...body, epoch: view.epoch }));
  const next = view.next_at === null ? "nothing is due" : `due at ${virtual(view.next_at)}`;
  return (
    <div class="row racks-steps">
      <Button onClick={() => step({ seconds: 1 })}>+1 s</Button>
      <Button primary onClick={() => step({ seconds: 10 })}>
        +10 s
      </Button>
      <Button onClick={() => step({ seconds: 60 })}>+1 min</Button>
      <Button onClick={() => step({ events: 1 })} disabled={view.next_at === null} label={`Next instant, ${next}`}>
        Next instant
      </Button>
      <Form
        class="row racks-jump"
        onSubmit={() => {
          const seconds = Number(amount) * Number(unit);
          return seconds > 0 ? step({ seconds }) : toast("Say how far to jump: a number above 0.", "bad");
        }}
      >
        <Text label="Jump ahead by" type="number" min={0} value={amount} onInput={setAmount} />
        <Select label="Unit" value={unit} onChange={setUnit} options={UNITS} />
        <Button submit>Jump</Button>
      </Form>
      {view.steps.length > 0 && <State look="busy">{count(view.steps.length, "step")} under way</State>}
    </div>
  );
}

/** The address of a component, if it stands on the floor. */
function componentLink(component: string): string | null {
  const [rack = "", part = ""] = component.split("/");
  const found = byKey.value.get(fold(rack));
  return found ? address(found, part.split(":")[0] ?? "") : null;
}

function Component({ of }: { of: string }) {
  const link = componentLink(of);
  return link ? <a href={link}>{of}</a> : <strong>{of || "everything"}</strong>;
}

export function Faults() {
  const view = sim.value;
  if (!view) return null;
  return (
    <section class="panel stack racks-faults" aria-label="Faults and repairs">
      <div>
        <h2>Broken</h2>
        {view.faults.length ? (
          <ul class="racks-list">
            {view.faults.map((fault) => (
              <li key={fault.id} class="row apart">
                <span>
                  <Component of={fault.on} />: {fault.text} <span class="soft small">{fault.id}</span>
                </span>
                {can("inject_faults") && (
                  <Button small onClick={() => acted(() => del(at`/v1/sim/faults/${fault.id}`), `${fault.id} is lifted`)} label={`Lift ${fault.id}`}>
                    Lift
                  </Button>
                )}
              </li>
            ))}
          </ul>
        ) : (
          <p class="soft">Nothing is broken on purpose.</p>
        )}
      </div>
      <div>
        <h2>Should be repaired</h2>
        {view.proposals.length ? (
          <ul class="racks-list">
            {view.proposals.slice(0, 50).map((proposal) => (
              <li key={proposal.id} class="row apart">
                <span>
                  <Component of={proposal.component} />: {proposal.text} <span class="soft small">({proposal.reason})</span>
                </span>
                <Repair proposal={proposal} />
              </li>
            ))}
          </ul>
        ) : (
          <p class="soft">Everything is as it should be.</p>
        )}
        {can("perform_repairs") && (
          <Check
            label="Repair by itself"
            hint="what commands are enough for; where a human must go, you are asked"
            checked={view.auto_repair}
            onChange={(automatic) => void acted(() => put("/v1/sim/repairs", { automatic }))}
          />
        )}
      </div>
      <div>
        <h2>Control plane</h2>
        <ul class="racks-list">
          {view.replicas.map((one) => (
            <li key={one.name}>
              <State look={!one.runs ? "bad" : one.leads ? "good" : "idle"}>
                {one.name}: {!one.runs ? "does not run" : one.leads ? "leads" : "stands by"}
              </State>
            </li>
          ))}
        </ul>
        {can("inject_faults") && (
          <details class="racks-else">
            <summary>Break something else</summary>
            <FaultForm component={null} fits={kinds.value} first="leader_killed" />
          </details>
        )}
        {view.timeline > 0 && <p class="soft small">{count(view.timeline, "moment")} of the scenario are still to come.</p>}
      </div>
    </section>
  );
}

export function Repair({ proposal }: { proposal: Proposal }) {
  if (!can("perform_repairs")) return null;
  const word = proposal.automatic ? "Repair" : "Go there and repair";
  return (
    <Button small onClick={() => acted(() => post(at`/v1/sim/repairs/${proposal.id}`), "Repaired")} label={`${word} ${proposal.component}`}>
      {word}
    </Button>
  );
}

const FIRST: Record<string, string> = { pdu: "power", tor: "network", blade: "blade_crash", rack: "power" };

/** Break this very thing, lift what was broken, repair what is proposed. */
export function Break({ component, kind }: { component: string; kind: "pdu" | "tor" | "blade" | "rack" }) {
  const view = sim.value;
  if (!view) return null;
  const faults = view.faults.filter((one) => fold(one.on).split(":")[0] === component);
  const proposals = view.proposals.filter((one) => one.component.split(":")[0] === component);
  return (
    <section class="stack racks-break" aria-label={`Faults of ${component}`}>
      <h3>In the simulation</h3>
      {faults.map((one) => (
        <p key={one.id} class="row apart">
          <State look="bad">{one.text}</State>
          {can("inject_faults") && (
            <Button small onClick={() => acted(() => del(at`/v1/sim/faults/${one.id}`), `${one.id} is lifted`)}>
              Lift {one.id}
            </Button>
          )}
        </p>
      ))}
      {proposals.map((one) => (
        <p key={one.id} class="row apart">
          <span>
            {one.text} <span class="soft small">({one.reason})</span>
          </span>
          <Repair proposal={one} />
        </p>
      ))}
      {can("inject_faults") ? (
        <FaultForm component={component} fits={kinds.value.filter((one) => one.places.includes(kind))} first={FIRST[kind] ?? ""} />
      ) : (
        !faults.length && !proposals.length && <p class="soft">Breaking it takes the right inject_faults and the membership *.</p>
      )}
    </section>
  );
}

/** `component` null: it is asked for. */
function FaultForm({ component, fits, first }: { component: string | null; fits: FaultKind[]; first: string }) {
  const [name, setName] = useState(first);
  const [where, setWhere] = useState("");
  const [length, setLength] = useState("");
  const [numbers, setNumbers] = useState<Record<string, string>>({});
  const [problem, setProblem] = useState<unknown>(null);
  const anywhere = component === null;
  const fault: FaultKind | undefined = fits.find((one) => one.fault === name) ?? fits[0];
  const inject = async (): Promise<void> => {
    setProblem(null);
    try {
      const said = Object.fromEntries((fault?.numbers ?? []).flatMap((one) => (numbers[one.name] ? [[one.name, read(numbers[one.name] ?? "")]] : [])));
      await post("/v1/sim/faults", { fault: fault?.fault, on: anywhere ? where : component, ...(Number(length) > 0 ? { for: Number(length) } : {}), ...said });
      toast(`${(anywhere ? where : component) || "Everything"} is broken: ${fault?.fault}`);
    } catch (error) {
      setProblem(asProblem(error));
    }
    await refresh();
  };
  if (!fault) return null;
  return (
    <Form onSubmit={inject}>
      <Select label="What goes wrong" value={fault.fault} onChange={setName} options={fits.map((one) => [one.fault, one.fault.replaceAll("_", " ")] as const)} hint={fault.about} />
      {anywhere && <Text label="Where" value={where} onInput={setWhere} placeholder="replica-1, r1, r1/b3" hint={`A ${fault.places.filter((one) => one !== "all").join(", a ") || "leader"}${fault.places.includes("all") ? "; empty: everything" : ""}`} />}
      <Text label="For how many seconds" type="number" min={0} value={length} onInput={setLength} hint="Virtual seconds. Empty: until it is lifted." />
      {fault.numbers.map((one) => (
        <Text
          key={one.name}
          label={one.name}
          value={numbers[one.name] ?? ""}
          placeholder={one.default}
          onInput={(value) => setNumbers({ ...numbers, [one.name]: value })}
        />
      ))}
      {problem !== null && <Failure error={problem} />}
      <Button danger submit>
        Break it
      </Button>
    </Form>
  );
}

const read = (text: string): unknown => (text === "true" || text === "false" ? text === "true" : Number.isFinite(Number(text)) ? Number(text) : text);
