// A terminal in the page. What draws it is large, so it is loaded when the first one is opened.
import { useEffect, useRef, useState } from "preact/hooks";
import { asProblem, Problem } from "../api";
import { Busy, Button, Check, Failure, State, toast } from "../ui";
import { explained, LOST, type Protocol } from "./wire";
import type { Screen } from "./screen";
import "./terminal.css";

export type { Protocol } from "./wire";

export type TerminalPhase = "opening" | "waiting" | "open" | "closed";

export interface TerminalState {
  phase: TerminalPhase;
  /** What was said of it last: why it waits, or why it ended. */
  message: string;
  /** Of the WebSocket, once it has ended; 0: it never opened. */
  code?: number;
}

/** How the page connects again by itself. */
interface Again {
  /** Why the connection ended; empty: there is one, or the user asked for it. */
  lost: string;
  pause: number;
  refused: number;
  openAt: number;
  timer?: ReturnType<typeof setTimeout>;
}

export interface TerminalProps {
  /** Take a ticket, and say what to open: "/v1/…/console?ticket=…". `empty`: nothing is on the screen yet. */
  open: (empty: boolean) => Promise<string>;
  /** "bytes": binary messages, as consoles use; "json": the protocol of docs/terminal.md. */
  protocol: Protocol;
  /** What it is, for those who cannot see it: "Serial port of web-1". */
  label: string;
  onState?: (state: TerminalState) => void;
  /** The message if the connection did not open: a browser does not learn why. */
  shut?: string;
}

const LEAVE = "Ctrl+Shift+Enter";
const LOOKS = { opening: "busy", waiting: "busy", open: "good", closed: "idle" } as const;
/** Milliseconds before the page connects again: at first, and at most. */
const AGAIN = [500, 5000] as const;
/** How often in a row that may fail at a server that answers, before the user is asked. */
const REFUSED = 20;
/** Milliseconds after which a connection counts as one that worked. */
const LASTED = 5000;
const WORDS = { opening: "Connecting", waiting: "Waiting", open: "Connected", closed: "Ended" };

export function Terminal({ open, protocol, label, onState, shut }: TerminalProps) {
  const box = useRef<HTMLDivElement>(null);
  const bar = useRef<HTMLDivElement>(null);
  const screen = useRef<Screen | null>(null);
  const latest = useRef({ open, onState });
  latest.current = { open, onState };
  const [state, setState] = useState<TerminalState>({ phase: "opening", message: "" });
  const [problem, setProblem] = useState<Problem | null>(null);
  const [loaded, setLoaded] = useState(false);
  const [aloud, setAloud] = useState(false);
  const [size, setSize] = useState("");
  const tell = (next: TerminalState): void => {
    setState(next);
    latest.current.onState?.(next);
  };
  const again = useRef<Again>(fresh());
  /** Connect in a moment, and less often the longer it takes. */
  const connectLater = (why: string): void => {
    const next = again.current;
    next.lost ||= why;
    tell({ phase: "opening", message: `${next.lost.replace(/\.?$/, ".")} The page connects again by itself.` });
    next.timer = setTimeout(() => void connect(), next.pause * (0.75 + Math.random() / 2));
    next.pause = Math.min(next.pause * 2, AGAIN[1]);
  };
  const connect = async (): Promise<void> => {
    const shown = screen.current;
    if (!shown) return;
    setProblem(null);
    const { lost } = again.current;
    if (!lost) tell({ phase: "opening", message: "" });
    try {
      const path = await latest.current.open(shown.empty);
      // The user may have left the page.
      if (screen.current === shown) shown.connect(path, protocol);
    } catch (error) {
      if (screen.current !== shown) return;
      const problem = asProblem(error);
      const passing = problem.status === 0 || ((problem.status >= 500 || problem.status === 429) && ++again.current.refused < REFUSED);
      if (lost && passing) return connectLater(lost);
      setProblem(problem);
      tell({ phase: "closed", message: "", code: 0 });
    }
  };
  const ended = (code: number, message: string, opened: boolean): void => {
    if (Date.now() - again.current.openAt > LASTED) again.current = fresh();
    const next = again.current;
    next.openAt = Infinity;
    const why = explained(code, message, opened, shut);
    // What never opened is shut; what was lost a moment ago may be there again.
    const passing = (opened ? LOST.has(code) : next.lost !== "") && ++next.refused < REFUSED;
    if (passing) connectLater(why);
    else tell({ phase: "closed", message: why, code: opened ? code : 0 });
  };
  useEffect(() => {
    let gone = false;
    import("./screen").then(
      (module) => {
        if (gone || !box.current) return;
        screen.current = new module.Screen(box.current, label, {
          heard: (phase, message) => {
            if (phase === "open") Object.assign(again.current, { lost: "", openAt: Date.now() });
            tell({ phase, message });
          },
          ended,
          leave: () => bar.current?.querySelector<HTMLElement>("button:not(:disabled)")?.focus(),
          sized: (cols, rows) => setSize(`stty cols ${cols} rows ${rows}`),
        });
        setLoaded(true);
        void connect();
      },
      (error) => setProblem(asProblem(error)),
    );
    return () => {
      gone = true;
      clearTimeout(again.current.timer);
      screen.current?.close();
      screen.current = null;
    };
  }, []);
  useEffect(() => {
    const fit = (): void => fitted(box.current);
    fit();
    addEventListener("resize", fit);
    return () => removeEventListener("resize", fit);
  }, [loaded, size === "", problem === null]);
  return (
    <section class="terminal" aria-label={label}>
      <div class="terminal-bar row" ref={bar}>
        <span role="status" class="terminal-state">
          <State look={LOOKS[state.phase]}>{WORDS[state.phase]}</State>
          {state.message && <span>: {state.message}</span>}
        </span>
        {loaded && state.phase === "closed" && (
          <Button
            small
            onClick={() => {
              again.current = fresh();
              void connect();
            }}
          >
            Connect again
          </Button>
        )}
        <Button small onClick={() => copied(screen.current)}>
          Copy what is selected
        </Button>
        <Check
          label="For screen readers"
          checked={aloud}
          onChange={(on) => {
            setAloud(on);
            screen.current?.readAloud(on);
          }}
        />
      </div>
      {problem && <Failure error={problem} />}
      {!loaded && !problem && <Busy>Loading the terminal</Busy>}
      <div class="terminal-screen" ref={box} />
      <p class="soft small">
        <kbd>{LEAVE}</kbd> leaves the terminal by keyboard; <kbd>Ctrl+Shift+C</kbd> and <kbd>Ctrl+Shift+V</kbd> copy and paste.
        {protocol === "bytes" && size && (
          <>
            {" "}
            A serial port does not know how large the window is; inside, tell it with <code>{size}</code>.
          </>
        )}
      </p>
    </section>
  );
}

function fresh(): Again {
  return { lost: "", pause: AGAIN[0], refused: 0, openAt: Infinity };
}

const LEAST = 224;
const BELOW = 16;

/** As high as there is room in the window, with what stands under it; where it begins too far down, as its style says. */
function fitted(box: HTMLElement | null): void {
  const under = box?.parentElement;
  if (!box || !under) return;
  const above = box.getBoundingClientRect().top + scrollY;
  const below = under.getBoundingClientRect().bottom - box.getBoundingClientRect().bottom;
  const room = innerHeight - above - below - BELOW;
  box.style.height = room < LEAST ? "" : `${Math.floor(room)}px`;
}

async function copied(screen: Screen | null): Promise<void> {
  const text = screen?.selection() ?? "";
  if (!text) {
    toast("Nothing is selected. Drag over the text first.");
    return;
  }
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied.");
  } catch {
    toast("The browser does not let the page copy. Select the text and use the browser's menu.", "bad");
  }
}
