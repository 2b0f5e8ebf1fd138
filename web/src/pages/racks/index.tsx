// The floor as one looks at it: racks with blades, pdus, tors and cables, live; and, with a simulation, its time.
import { useEffect, useState } from "preact/hooks";
import { go, route, setQuery, to } from "../../route";
import { can } from "../../session";
import { attempt, Busy, Button, count, Empty, Failure, Head, Text } from "../../ui";
import { BladePanel, FeedPanel, RackPanel } from "./chosen";
import { Faults, TimeBar } from "./controls";
import { counts, failed, floor, type Rack, useFloor } from "./floor";
import { exported, Loading } from "./inventory";
import { Legend } from "./legend";
import { LOOKS } from "./look";
import { FloorPicture } from "./picture";
import { useSimulation } from "./simulation";
import { Story } from "./story";
import { address, chosen, cursor, hits, only, partAt, rackAt, sought } from "./view";
import "./racks.css";

export default function Page() {
  useFloor();
  const known = floor.value;
  useSimulation(known?.simulation ?? false);
  const loading = route.value.query.get("view") === "inventory";
  return (
    <div class="racks">
      <Head title={loading ? "Load an inventory" : "Racks"} crumbs={loading ? <a href={to("racks")}>Racks</a> : null}>
        {!loading && (known?.racks.length ?? 0) > 0 && <HeadActions />}
      </Head>
      {loading ? <Loading /> : known ? <Standing racks={known.racks} simulation={known.simulation} /> : failed.value ? <Failure error={failed.value} /> : <Busy>Loading racks</Busy>}
    </div>
  );
}

function HeadActions() {
  return (
    <div class="row">
      {can("modify_inventory") && (
        <a class="button" href={to("racks", [], { view: "inventory" })}>
          Load an inventory
        </a>
      )}
      <Button onClick={() => attempt(exported)}>Export the inventory</Button>
    </div>
  );
}

function Standing({ racks, simulation }: { racks: Rack[]; simulation: boolean }) {
  if (!racks.length) return <Nothing />;
  return (
    <div class="stack">
      {failed.value && <Failure error={failed.value} />}
      {simulation && <TimeBar />}
      <Tools />
      <div class="racks-main">
        <FloorPicture />
        <div class="racks-side">
          <Aside racks={racks} />
          {simulation && <Faults />}
        </div>
        {simulation && <Story />}
      </div>
    </div>
  );
}

function Nothing() {
  return (
    <Empty title="No racks yet">
      <p>
        An inventory says which racks there are, what is in them, and how it is wired. Hostler places machines by it: nothing new goes to a blade that is out of use, and what belongs apart hangs
        on different pdus and tors.
      </p>
      {can("modify_inventory") ? (
        <>
          <a class="button primary" href={to("racks", [], { view: "inventory" })}>
            Load an inventory
          </a>
          <p class="soft small">
            From a terminal: <code>hostler inventory load dc.yaml</code>
          </p>
        </>
      ) : (
        <p class="soft">Loading one takes the right modify_inventory and the membership *.</p>
      )}
    </Empty>
  );
}

function Tools() {
  const [text, setText] = useState(sought.value);
  useEffect(() => setText(sought.value), [sought.value]);
  const found = hits.value;
  const [first] = found;
  return (
    <div class="racks-tools">
      <form
        role="search"
        class="racks-search"
        onSubmit={(event) => {
          event.preventDefault();
          if (first) {
            cursor.value = { rack: first.rack.key, part: first.part.toLowerCase() };
            go(address(first.rack, first.part));
          }
        }}
      >
        <Text
          label="Find a rack, blade or node"
          type="search"
          value={text}
          placeholder="r1, r1/b3 or r1-b3"
          onInput={(value) => {
            setText(value);
            setQuery({ find: value });
          }}
        />
        {sought.value && <Hits />}
      </form>
      <Legend />
    </div>
  );
}

const SHOWN = 6;

function Hits() {
  const found = hits.value;
  if (!found.length) return <p class="soft small" role="status">Nothing is called that.</p>;
  return (
    <ul class="racks-hits" aria-label="Found">
      {found.slice(0, SHOWN).map(({ rack, part }) => (
        <li key={`${rack.key}/${part}`}>
          <a href={address(rack, part)}>{rack.loose ? part : part ? `${rack.name}/${part}` : rack.name}</a>
        </li>
      ))}
      {found.length > SHOWN && <li class="soft">{found.length >= 200 ? "and many more" : `and ${found.length - SHOWN} more`}</li>}
    </ul>
  );
}

/** Escape, unless a field or list may want it. */
function closes(event: KeyboardEvent): void {
  if (event.key !== "Escape" || !chosen.value || (event.target as Element).matches("input, select, textarea")) return;
  go(address(null));
  document.querySelector<HTMLElement>(".racks-canvas")?.focus();
}

/** What is open; otherwise all racks, as a list. */
function Aside({ racks }: { racks: Rack[] }) {
  const spot = chosen.value;
  const rack = rackAt(spot);
  const part = partAt(spot);
  const missing = spot && (!rack || (spot.part && !part));
  return (
    <section class="panel racks-aside stack" aria-label="What is selected" onKeyDown={closes}>
      {missing ? (
        <div class="note warn" role="alert">
          <p>
            There is no {spot.part ? `${spot.rack ? `${spot.rack}/` : "node "}${spot.part}` : `rack ${spot.rack}`} on this floor. It may have been taken out of the inventory.
          </p>
          <p>
            <a href={address(null)}>Show all racks</a>
          </p>
        </div>
      ) : rack && part ? (
        part.kind === "blade" ? (
          <BladePanel key={`${rack.key}/${part.name}`} rack={rack} part={part} />
        ) : (
          <FeedPanel key={`${rack.key}/${part.name}`} rack={rack} part={part} />
        )
      ) : rack ? (
        <RackPanel key={rack.key} rack={rack} />
      ) : (
        <All racks={racks} />
      )}
    </section>
  );
}

const MOST = 300;

function All({ racks }: { racks: Rack[] }) {
  const blades = racks.reduce((sum, rack) => sum + rack.blades.length, 0);
  const state = only.value;
  return (
    <>
      <h2 id="racks-chosen" tabIndex={-1}>
        {count(racks.filter((rack) => !rack.loose).length, "rack")}, {count(blades, "blade")}
      </h2>
      <p class="soft">
        {state ? `${count(counts.value[state], "blade is", "blades are")} ${LOOKS[state].word.toLowerCase()}. ` : ""}
        Point at a rack to see its cables. Click on a blade, a pdu, a tor or the name of a rack to open it.
      </p>
      <div class="scroller racks-parts" tabIndex={0} role="region" aria-label="All racks">
        <table>
          <caption class="unseen">All racks</caption>
          <thead>
            <tr>
              <th scope="col">Rack</th>
              <th scope="col">Where</th>
              <th scope="col" class="number">
                On duty
              </th>
              <th scope="col" class="number">
                Machines
              </th>
            </tr>
          </thead>
          <tbody>
            {racks.slice(0, MOST).map((rack) => (
              <tr key={rack.key}>
                <th scope="row">{rack.loose ? rack.name : <a href={address(rack)}>{rack.name}</a>}</th>
                <td>{[rack.region, rack.zone, rack.location].filter(Boolean).join(", ")}</td>
                <td class="number">
                  {rack.states.filter((one) => one === "on_duty").length}/{rack.blades.length}
                </td>
                <td class="number">{rack.vms.reduce((sum, n) => sum + n, 0)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {racks.length > MOST && <p class="soft small">The first {MOST} are listed; search for others.</p>}
    </>
  );
}
