// Why an object has its state: decisions and requests, newest first, each with its causes.
import { useEffect, useState } from "preact/hooks";
import { asProblem, get, type Problem, withQuery } from "./api";
import type { TraceView as Trace, WhyView } from "./api-types";
import { ObjectLink, thing, told } from "./objects";
import { Busy, Button, Clock, Failure } from "./ui";
import { type Branch, Tree } from "./ui/tree";
import { didIt } from "./verbs";

export type { TraceView as Trace, WhyView } from "./api-types";

/** One step in words. `about`: the object of the page, which is not repeated. */
export function Step({ of, about }: { of: Trace; about?: string }) {
  const own = of.subject === about;
  return (
    <div class="why-step">
      {of.open && <span title="What led to it is no longer kept, or not for you to see">… </span>}
      {!own && (
        <>
          <ObjectLink of={of.subject} />:{" "}
        </>
      )}
      {of.sort === "wish" ? (
        <>
          <strong>{of.actor}</strong> {didIt(of.what)}
        </>
      ) : (
        told(of.why || of.what)
      )}{" "}
      <span class="soft small">
        {of.sort === "wish" ? "" : `${of.actor}, `}
        {of.at === null ? "at a time that is not known any more" : <Clock at={of.at} />}
      </span>
      {of.reasons.length > 0 && (
        <details class="small">
          <summary>What was weighed</summary>
          <ul>
            {of.reasons.map((reason, i) => (
              <li key={i}>
                {reason.subject}: {told(reason.why)}
              </li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

/** What was done to the object one after the other; what led to a step, and was about something else, is under it. */
function chains(steps: Trace[], about: string): Branch[] {
  const byId = new Map(steps.map((step) => [step.id, step]));
  const done = new Set(steps.filter((step) => step.subject === about).map((step) => step.id));
  const branch = (step: Trace): Branch => {
    const cause = byId.get(step.parent);
    const under = cause && !done.has(cause.id) ? cause : undefined;
    if (under) done.add(under.id);
    return { key: step.id, content: <Step of={step} about={about} />, children: under ? [branch(under)] : [] };
  };
  const own = steps.filter((step) => step.subject === about).map(branch);
  const rest = steps.filter((step) => !done.has(step.id));
  return [...own, ...rest.flatMap((step) => (done.has(step.id) ? [] : [done.add(step.id) && branch(step)]))];
}

/** Asks the server why, and shows it as a tree. `object`: as `hostler why` takes it. */
export function Why({ object }: { object: string }) {
  const [found, setFound] = useState<WhyView | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [limit, setLimit] = useState(20);
  const load = async (): Promise<void> => {
    setProblem(null);
    try {
      setFound(await get<WhyView>(withQuery("/v1/why", { object, limit })));
    } catch (error) {
      setProblem(asProblem(error));
    }
  };
  useEffect(() => {
    setFound(null);
    setLimit(20);
  }, [object]);
  useEffect(() => void load(), [object, limit]);
  if (problem) return <Failure error={problem} again={load} />;
  if (!found) return <Busy>Asking why</Busy>;
  const about = thing(found.object);
  return (
    <div class="why">
      <p>
        <strong>
          <ObjectLink of={{ ...about, link: thing(object).link ?? about.link }} /> {told(found.state)}
        </strong>
        {found.since !== null && (
          <span class="soft">
            {" "}
            since <Clock at={found.since} />
          </span>
        )}
      </p>
      {found.steps.length ? <Tree label={`Why ${about.words} is so`} branches={chains(found.steps, found.object)} /> : <p>Nothing is known of how it came to that: what was decided then is no longer kept.</p>}
      {found.cut && limit < 1000 && (
        <Button small onClick={() => setLimit(Math.min(1000, limit * 5))}>
          Show more steps
        </Button>
      )}
    </div>
  );
}
