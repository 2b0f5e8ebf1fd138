// A terminal in the page. What draws it is large, so it is loaded when the first one is opened.
import { useEffect, useRef, useState } from "preact/hooks";
import { asProblem, Problem } from "../api";
import { Busy, Button, Check, Failure, State, toast } from "../ui";
import { explained, type Protocol } from "./wire";
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

export interface TerminalProps {
  /** Take a ticket, and say what to open: "/v1/…/console?ticket=…". `empty`: nothing is on the screen yet. */
  open: (empty: boolean) => Promise<string>;
  /** "bytes": binary messages, as the doors of machines speak; "json": those of docs/terminal.md. */
  protocol: Protocol;
  /** What it is, for those who cannot see it: "Serial port of web-1". */
  label: string;
  onState?: (state: TerminalState) => void;
  /** What to say where the door did not open at all, as a browser is not told why. */
  shut?: string;
}

const LEAVE = "Ctrl+Shift+Enter";
const LOOKS = { opening: "busy", waiting: "busy", open: "good", closed: "idle" } as const;
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
  const connect = async (): Promise<void> => {
    const shown = screen.current;
    if (!shown) return;
    setProblem(null);
    tell({ phase: "opening", message: "" });
    try {
      const path = await latest.current.open(shown.empty);
      // Meanwhile the page may have been left.
      if (screen.current === shown) shown.connect(path, protocol);
    } catch (error) {
      setProblem(asProblem(error));
      tell({ phase: "closed", message: "", code: 0 });
    }
  };
  useEffect(() => {
    let gone = false;
    import("./screen").then(
      (module) => {
        if (gone || !box.current) return;
        screen.current = new module.Screen(box.current, label, {
          heard: (phase, message) => tell({ phase, message }),
          ended: (code, message, opened) => tell({ phase: "closed", message: explained(code, message, opened, shut), code: opened ? code : 0 }),
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
          <Button small onClick={connect}>
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
