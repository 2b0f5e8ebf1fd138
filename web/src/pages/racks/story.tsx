// The timeline of what followed, with its reasons, as trees.
import { useMemo, useState } from "preact/hooks";
import { type Branch, Button, Check, Empty, Tree } from "../../ui";
import { cut, grown, type Happening, line, size, wasDone } from "./reasons";
import { log, parents, sim } from "./simulation";
import { virtual } from "./time";

const MOST = 12;
const LINES = 600;
/** On a narrow screen, and elsewhere, unless all of it is wanted. */
const NARROW = 20;
const WIDE = 120;

export function Story() {
  const [all, setAll] = useState(false);
  const [whole, setWhole] = useState(false);
  const trees = useMemo(() => grown(log.value, parents.value), [log.value, parents.value]);
  const wanted = trees.filter((one) => all || wasDone(one)).reverse();
  const shown: Happening[] = [];
  let lines = 0;
  for (const one of wanted) {
    lines += size(one);
    if (shown.length && (lines > LINES || shown.length >= (all ? 200 : MOST))) break;
    shown.push(one);
  }
  const total = shown.reduce((sum, one) => sum + size(one), 0);
  const most = matchMedia("(max-width: 40rem)").matches ? NARROW : WIDE;
  const told = whole ? shown : cut(shown, most);
  return (
    <section class="panel racks-story" aria-labelledby="racks-story">
      <div class="row apart">
        <h2 id="racks-story">What followed</h2>
        <Check label="Also what happened by itself" checked={all} onChange={setAll} />
      </div>
      {shown.length ? (
        <div aria-live="polite" aria-relevant="additions">
          <Tree label="What followed, newest first" branches={told.map(branch)} />
        </div>
      ) : (
        <Empty title="Nothing was broken yet">
          <p>Choose a PDU, a ToR, a blade or a rack in the picture, break it, and let time advance. The consequences appear here, each under its reason.</p>
          <p class="soft small">
            From a terminal: <code>hostler sim fault power {firstPdu()}</code>
          </p>
        </Empty>
      )}
      {total > most && (
        <Button small onClick={() => setWhole(!whole)}>
          {whole ? `Show the first ${most} lines only` : `Show all ${total} lines`}
        </Button>
      )}
      {shown.length < wanted.length && <p class="soft small">The newest are shown. hostler sim log has all of it.</p>}
    </section>
  );
}

const firstPdu = (): string => `${sim.value?.racks[0]?.name ?? "r1"}/pdu1`;

function branch(one: Happening): Branch {
  return {
    key: one.key,
    content: (
      <span class={`racks-told ${one.kind}`}>
        <span class="racks-at number">{virtual(one.at)}</span> {one.link ? <a href={one.link}>{one.subject}</a> : <strong>{one.subject}</strong>}: {line(one)}
        {one.guess && <span class="soft small"> (probably because of that)</span>}
      </span>
    ),
    children: one.children.map(branch),
  };
}
