// How one version follows another: the stages and where it stands, what was measured against the gate, and the verdict.
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, withQuery } from "../../api";
import type { TracePage } from "../../api-types";
import { clock } from "../../clock";
import { everywhere } from "../../session";
import { Clock, count, Left, State, Table, type Look } from "../../ui";
import type Chart from "./chart";
import { linesOf, type Measured, SMOOTHED, sumsOf } from "./series";
import type { Trace } from "../../why";
import type { Rollout as Going, SliceStatus } from "./types";
import { percent, versionOf } from "./words";

/** Seconds before an upgrade that are shown with it, and the least that is shown. */
const BEFORE = 20;
const LEAST = 60;

export function Rollout({ slice, measured }: { slice: SliceStatus; measured: Measured | null }) {
  const going = slice.rollout;
  const story = useStory(slice);
  const [opened, setOpened] = useState<boolean | null>(null);
  const called = measured !== null && Object.values(measured.seconds).some((one) => one.size > 0);
  const moving = Boolean(slice.previous) || slice.step === "canary" || slice.step === "backing_out";
  const told = story.filter((one) => going && one.at !== null && one.at >= going.started_at - 1);
  const wasCanary = told.some((one) => one.why.startsWith("stage ") || one.what === "canary");
  if (!going || (!called && !moving && !wasCanary)) return null;
  const open = opened ?? (moving || wasCanary);
  return (
    <details class="deployments-rollout" open={open} onToggle={(event) => setOpened(event.currentTarget.open)}>
      <summary>
        <h3>{slice.strategy === "canary" && (moving || wasCanary) ? "Canary" : "Calls"}</h3>
      </summary>
      {open && (
        <div class="stack">
          {slice.strategy === "canary" && (moving || wasCanary) && <Stages slice={slice} going={going} story={told} />}
          <Verdict slice={slice} going={going} measured={measured} story={told} />
          {called && <Charts slice={slice} going={going} measured={measured} story={told} />}
          {told.length > 0 && (
            <details>
              <summary>What happened</summary>
              <ol class="deployments-steps">
                {told.map((one) => (
                  <li key={one.id}>
                    {one.at !== null && <Clock at={one.at} />} {one.what}: {one.why}
                  </li>
                ))}
              </ol>
            </details>
          )}
        </div>
      )}
    </details>
  );
}

/** Decisions about the slice's rollout, oldest first; read again at each step. */
function useStory(slice: SliceStatus): Trace[] {
  const [story, setStory] = useState<Trace[]>([]);
  const changed = `${slice.step} ${slice.stage} ${slice.rollout?.changed_at}`;
  useEffect(() => {
    if (!everywhere.value) return; // other accounts cannot read decisions about slices
    let ended = false;
    get<TracePage>(withQuery("/v1/decisions", { object: `slice/${slice.base}`, limit: 200 })).then(
      (page) => {
        if (!ended) setStory(page.items.filter(isAboutIt).reverse());
      },
      () => {}, // the rest is shown without
    );
    return () => {
      ended = true;
    };
  }, [slice.base, changed]);
  return story;
}

const PHASES = new Set(["starting", "rolling", "canary", "standby", "keeping", "backing_out", "failed", "done", "removing", "deployment"]);
const isAboutIt = (one: Trace): boolean => one.sort === "decision" && PHASES.has(one.what);

/** A passed stage says so; where traces are not kept any more, the numbers do. */
function passed(story: readonly Trace[], stage: number): string {
  return story.find((one) => one.why.startsWith(`stage ${stage} of `) && one.why.includes(" passed"))?.why ?? "";
}

function Stages({ slice, going, story }: { slice: SliceStatus; going: Going; story: Trace[] }) {
  const over = slice.step === "done" || (slice.step === "canary" && slice.stage === 0);
  const failed = slice.step === "failed" || slice.step === "backing_out";
  const share = slice.weights[slice.artifact] ?? 0;
  const reached = going.stages.filter((_, i) => passed(story, i + 1)).length + 1;
  return (
    <ol class="deployments-stages" aria-label="Stages of the canary">
      {going.stages.map((stage, i) => {
        const number = i + 1;
        const done = over || passed(story, number) !== "" || (slice.stage > 0 && number < slice.stage);
        const here = !done && slice.step === "canary" && number === slice.stage;
        const held = here && share === stage.weight;
        const [look, word]: [Look, string] = done ? ["good", "passed"] : here ? ["busy", held ? "held" : "being made ready"] : failed ? (number === reached && story.length ? ["bad", "failed"] : ["idle", "not reached"]) : ["idle", "to come"];
        return (
          <li key={number} aria-current={here ? "step" : undefined}>
            <strong>{stage.weight} %</strong> for {stage.hold} s
            <br />
            <State look={look}>{word}</State>
            {held && clock.value < going.changed_at + stage.hold && (
              <>
                , <Left at={going.changed_at + stage.hold} /> left
              </>
            )}
          </li>
        );
      })}
      <li aria-current={over && slice.step !== "done" ? "step" : undefined}>
        <strong>100 %</strong>
        <br />
        <State look={slice.step === "done" ? "good" : over ? "busy" : "idle"}>
          {slice.step === "done" ? "done" : over ? "the old go" : failed ? "not reached" : "to come"}
        </State>
      </li>
    </ol>
  );
}

interface Shown {
  slice: SliceStatus;
  going: Going;
  measured: Measured | null;
  story: Trace[];
}

/** The gate's judgement, in words and figures. */
function Verdict({ slice, going, measured, story }: Shown) {
  const [look, text] = verdict({ slice, going, measured, story });
  const versions = [slice.previous, slice.artifact].filter(Boolean);
  const ended = over(slice);
  // The gate counts again at each step; after its verdict, the values of the verdict matter more.
  const counted = measured ? (ended ? sumsOf(measured, going.started_at) : measured.counted) : {};
  return (
    <>
      <div class={`note ${look}`} role="status">
        <p>{text}</p>
      </div>
      {measured && versions.some((one) => counted[one]) && (
        <Table caption={`What was measured of ${slice.base}`} head={["Version", "Share wanted", ended ? "Calls since it began" : "Calls at this step", "Failed", "95 of 100 within"]}>
          {versions.map((artifact) => {
            const one = counted[artifact];
            const weight = slice.weights[artifact];
            return (
              <tr key={artifact}>
                <th scope="row">
                  <span class="mono">{versionOf(artifact)}</span> {artifact === slice.artifact ? (slice.previous ? "new" : "") : "old"}
                </th>
                <td class="deployments-number">{weight === undefined ? "by instances" : `${weight} %`}</td>
                <td class="deployments-number">{one?.calls ?? 0}</td>
                <td class="deployments-number">{one?.calls ? `${one.errors} (${percent(one.errors / one.calls)})` : "none"}</td>
                <td class="deployments-number">{one?.p95_ms ? `${Math.round(one.p95_ms)} ms` : "no calls lately"}</td>
              </tr>
            );
          })}
          {going.gate && (
            <tr>
              <th scope="row">gate</th>
              <td />
              <td class="deployments-number">at least {going.gate.min_calls}</td>
              <td class="deployments-number">at most {percent(going.gate.max_error_rate)}</td>
              <td class="deployments-number">{going.gate.max_latency_ms === null ? "not looked at" : `at most ${going.gate.max_latency_ms} ms`}</td>
            </tr>
          )}
        </Table>
      )}
    </>
  );
}

const over = (slice: SliceStatus): boolean => slice.step === "failed" || slice.step === "backing_out" || slice.step === "done";

function verdict({ slice, going, measured, story }: Shown): ["" | "good" | "warn" | "bad", string] {
  const gate = going.gate;
  const version = versionOf(slice.artifact);
  const old = versionOf(slice.previous);
  if (slice.step === "failed" || slice.step === "backing_out") {
    const serves = slice.previous && slice.previous !== slice.artifact ? ` ${old} serves.` : "";
    return ["bad", `${slice.step === "failed" ? "Rolled back" : "Rolling back"}: ${going.why}.${serves}`];
  }
  if (slice.step === "done") {
    // A stage that passes while the next batch is ready at once leaves no decision.
    const staged = story.some((one) => one.why.startsWith("stage "));
    const last = story.findLast((one) => one.why.includes(" passed: "));
    return ["good", staged ? `Passed: ${last?.why ?? "every stage kept to the gate"}. ${going.why}.` : `${going.why}.`];
  }
  if (slice.step !== "canary" || !gate) return ["", `${going.why || slice.detail || "Under way"}.`];
  if (!slice.stage) return ["good", `Passed: all calls go to ${version}, and ${old} goes.`];
  const stage = going.stages[slice.stage - 1];
  const here = `Stage ${slice.stage} of ${slice.stages}`;
  if (!stage || (slice.weights[slice.artifact] ?? 0) !== stage.weight) return ["", `${here}: instances of ${version} are made ready for ${stage?.weight ?? 0} % of the calls.`];
  const one = measured?.counted[slice.artifact];
  const calls = one && one.since >= going.changed_at - 1 ? one.calls : 0;
  const held = clock.value - going.changed_at;
  if (calls < gate.min_calls && held >= stage.hold) return ["warn", `${here} is held for calls: ${calls} of ${gate.min_calls} were made.`];
  const errors = one && calls ? `; ${percent(one.errors / calls)} of ${count(calls, "call")} failed, ${percent(gate.max_error_rate)} may` : "";
  return ["", `${here}: ${stage.weight} % of the calls go to ${version} for ${stage.hold} s${calls < gate.min_calls ? ` and until ${count(gate.min_calls, "call was", "calls were")} made (${calls} so far)` : ""}${errors}.`];
}

function Charts({ slice, going, measured, story }: Shown) {
  const Drawn = useChart();
  if (!measured || !Drawn) return null;
  const others = Object.keys(measured.seconds).filter((one) => one !== slice.artifact);
  const before = slice.previous || others.sort((a, b) => last(measured, b) - last(measured, a))[0] || "";
  const start = Math.min(Math.max(going.started_at - BEFORE, first(measured)), measured.now - LEAST);
  const lines = linesOf(measured, before, slice.artifact, start);
  const marks = [going.started_at, ...story.map((one) => one.at ?? 0)].filter((at) => at >= start);
  const { gate } = going;
  const limit = (value: number): number[] => lines.x.map(() => value);
  const names: [string, string] = [before ? versionOf(before) : "none before", versionOf(slice.artifact)];
  const sides = (values: [(number | null)[], (number | null)[]]) => [
    ...(before ? [{ label: names[0], values: values[0], colour: "--idle" as const }] : []),
    { label: names[1], values: values[1], colour: "--accent" as const },
  ];
  const errorLimit = gate && gate.max_error_rate * 100;
  return (
    <>
      <p class="deployments-legend">
        {before && <span class="old">{names[0]} (old)</span>}
        <span class="new">{names[1]} {before ? "(new)" : ""}</span>
        {gate && <span class="limit">the gate's limit</span>}
        <span class="soft">means over {SMOOTHED} s; dotted: steps of the rollout</span>
      </p>
      {before && (
        <p class="soft small">
          {over(slice) ? "The table is of all calls since it began" : "The table is of all calls of this step, its times of the last minute"}, the curves are means over {SMOOTHED} s: a slow
          call stays in the table for longer.
        </p>
      )}
      <div class="deployments-charts">
        {before && (
          <Drawn
            title={`Share of calls that go to ${names[1]}`}
            unit="%"
            x={lines.x}
            marks={marks}
            least={100}
            most={100}
            lines={[{ label: names[1], values: lines.share, colour: "--accent", fill: true }]}
          />
        )}
        <Drawn
          title="Calls that failed"
          unit="%"
          x={lines.x}
          marks={marks}
          least={errorLimit ? errorLimit * 2 : 2}
          lines={[...sides(lines.errors), ...(errorLimit !== null ? [{ label: "limit", values: limit(errorLimit), colour: "--bad" as const, dash: [6, 4] }] : [])]}
        />
        <Drawn
          title="Time of 95 in 100 calls"
          unit="ms"
          x={lines.x}
          marks={marks}
          least={gate?.max_latency_ms ? gate.max_latency_ms * 1.2 : 1}
          lines={[...sides(lines.latency), ...(gate?.max_latency_ms ? [{ label: "limit", values: limit(gate.max_latency_ms), colour: "--bad" as const, dash: [6, 4] }] : [])]}
        />
      </div>
    </>
  );
}

const last = (measured: Measured, artifact: string): number => Math.max(0, ...(measured.seconds[artifact]?.keys() ?? []));
const first = (measured: Measured): number => Math.min(measured.now, ...Object.values(measured.seconds).flatMap((one) => [...one.keys()]));

let drawn: ComponentType<Parameters<typeof Chart>[0]> | null = null;

function useChart(): typeof drawn {
  const [, again] = useState(0);
  useEffect(() => {
    if (drawn) return;
    void import("./chart").then((module) => {
      drawn = module.default;
      again((n) => n + 1);
    });
  }, []);
  return drawn;
}
