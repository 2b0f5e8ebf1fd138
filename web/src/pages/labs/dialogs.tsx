// What a teacher is asked before something is done: for whom, for how long, in which words.
import { useState } from "preact/hooks";
import { Actions, attempt, Button, count, Dialog, Form, Select, Text } from "../../ui";
import { extend, forEach, message, start } from "./data";
import { numbered } from "./words";
import type { Lab, Offers } from "./types";

const LONGEST = 500;
const WEEK = 7 * 24 * 60;

const whom = (labs: Lab[]): string => (labs.length === 1 && labs[0] ? labs[0].user : count(labs.length, "lab"));

export function StartDialog({ offers, user: known = "", onClose, onDone }: { offers: Offers; user?: string; onClose: () => void; onDone: (user: string) => void }) {
  const [user, setUser] = useState(known);
  const free = offers.items.every((offer) => offer.labId === null);
  const [lab, setLab] = useState(free ? "1" : String(offers.items[0]?.labId ?? 1));
  const number = Number(lab);
  const ready = user.trim() !== "" && Number.isInteger(number) && number >= 1;
  const submit = async (): Promise<void> => {
    if (!ready) return;
    if (await attempt(() => start(user.trim(), number), `A lab for ${user.trim()} is on its way.`)) onDone(user.trim());
  };
  return (
    <Dialog title="Start a lab" onClose={onClose}>
      <Form onSubmit={submit}>
        <Text label="User" value={user} onInput={setUser} required focus={!known} hint="Who it is for. A user has one lab at a time." />
        {free ? (
          <Text label="Number of the lab" type="number" min={1} value={lab} onInput={setLab} />
        ) : (
          <Select label="Lab" value={lab} onChange={setLab} options={offers.items.map((offer) => [String(offer.labId), numbered({ labId: offer.labId, title: offer.template.title })] as const)} />
        )}
        <Actions onClose={onClose} action="Start it" ready={ready} />
      </Form>
    </Dialog>
  );
}

export function ExtendDialog({ labs, onClose }: { labs: Lab[]; onClose: () => void }) {
  const [minutes, setMinutes] = useState("15");
  const asked = Number(minutes);
  const right = asked > 0 && asked <= WEEK;
  const submit = async (): Promise<void> => {
    if (!right) return;
    await forEach(labs, (lab) => extend(lab, asked), (n) => `${n === 1 && labs.length === 1 ? `The lab of ${whom(labs)} lives` : `${count(n, "lab")} live`} ${asked} min longer.`);
    onClose();
  };
  return (
    <Dialog title={`Extend ${labs.length === 1 ? `the lab of ${whom(labs)}` : whom(labs)}`} onClose={onClose}>
      <Form onSubmit={submit}>
        <Text label="Minutes" type="number" min={1} max={WEEK} value={minutes} onInput={setMinutes} focus hint="Longer than it would live now." wrong={right ? null : "From 1 minute to a week (10080)."} />
        <div class="row">
          {[5, 15, 30, 60].map((n) => (
            <Button small key={n} onClick={() => setMinutes(String(n))}>
              {`${n} min`}
            </Button>
          ))}
        </div>
        <Actions onClose={onClose} action="Extend" ready={right} />
      </Form>
    </Dialog>
  );
}

export function MessageDialog({ labs, onClose }: { labs: Lab[]; onClose: () => void }) {
  const [text, setText] = useState("");
  const long = [...text.trim()].length;
  const ready = long > 0 && long <= LONGEST;
  const submit = async (): Promise<void> => {
    if (!ready) return;
    await forEach(labs, (lab) => message(lab.user, text.trim()), (n) => `${labs.length === 1 ? whom(labs) : count(n, "user")} ${n === 1 ? "was" : "were"} told.`);
    onClose();
  };
  return (
    <Dialog title={labs.length === 1 ? `Say something to ${whom(labs)}` : `Say something to the users of ${whom(labs)}`} onClose={onClose}>
      <Form onSubmit={submit}>
        <Text label="Message" value={text} onInput={setText} focus hint="One line. It is shown at once on their page, above the terminal and in it, and stays among the events of the lab." wrong={long > LONGEST ? `${long} characters; at most ${LONGEST}.` : null} />
        <Actions onClose={onClose} action="Send" ready={ready} />
      </Form>
    </Dialog>
  );
}
