// xterm.js and the WebSocket behind it. Output is shown as a terminal shows it: no link, no HTML, no title, no bell.
import { effect } from "@preact/signals";
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { colour, theme } from "../theme";
import { heard, type Protocol } from "./wire";

export interface Listener {
  heard: (phase: "waiting" | "open", message: string) => void;
  ended: (code: number, message: string, opened: boolean) => void;
  /** The user wants out, by keyboard. */
  leave: () => void;
  sized: (cols: number, rows: number) => void;
}

/** Bytes that are typed or pasted in one message: the server takes 1 MiB. */
const PIECE = 64 * 1024;
const OSC_LINK = 8;
/** Leave the full screen, scroll region, colours, key and mouse modes of a program that is gone. */
const MODES_OFF = "\x1b[?1049l\x1b[!p\x1b[0m\x1b[?1l\x1b>\x1b[?9;1000;1002;1003;1004;1005;1006;1015;2004l\x1b[?25h";

export class Screen {
  empty = true;
  private readonly term: Terminal;
  private readonly fit = new FitAddon();
  private readonly ends: (() => void)[] = [];
  private socket: WebSocket | null = null;
  private protocol: Protocol = "bytes";
  private shell = "";
  /** Pieces of replayed output that are not drawn yet. A question in one is not answered: what asked it may have ended, and another program would read the answer. */
  private replayed = 0;

  constructor(
    private readonly box: HTMLElement,
    label: string,
    private readonly listener: Listener,
  ) {
    this.term = new Terminal({
      fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"),
      fontSize: 14,
      lineHeight: 1.15,
      scrollback: 5000,
      cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
      minimumContrastRatio: 4.5,
    });
    this.term.loadAddon(this.fit);
    this.term.parser.registerOscHandler(OSC_LINK, () => true);
    this.term.onData((data) => this.typed(data));
    this.term.onBinary((data) => this.typed(data, true));
    this.term.onResize(({ cols, rows }) => this.sized(cols, rows));
    this.term.attachCustomKeyEventHandler((event) => this.key(event));
    openWithin(this.term, box);
    this.term.textarea?.setAttribute("aria-label", `${label}: type here`);
    this.ends.push(effect(() => this.paint(theme.value)));
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const painted = (): void => this.paint(theme.peek());
    dark.addEventListener("change", painted);
    this.ends.push(() => dark.removeEventListener("change", painted));
    const watch = new ResizeObserver(() => this.fitted());
    watch.observe(box);
    this.ends.push(() => watch.disconnect());
    this.fitted();
  }

  connect(path: string, protocol: Protocol): void {
    this.hangUp();
    this.protocol = protocol;
    const address = new URL(path, location.href);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(address);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    // A serial port begins with what its machine wrote last.
    let first = protocol === "bytes";
    let opened = false;
    let message = "";
    socket.onopen = () => {
      opened = true;
      if (protocol === "bytes") this.listener.heard("open", "");
      this.sized(this.term.cols, this.term.rows);
      // Who goes from tab to tab by keyboard passes by here, and is not held.
      if (!document.activeElement?.matches('[role="tab"]')) this.term.focus();
    };
    socket.onmessage = (event: MessageEvent<ArrayBuffer | string>) => {
      if (protocol === "bytes") {
        this.show(typeof event.data === "string" ? event.data : new Uint8Array(event.data), first);
        first = false;
        return;
      }
      const said = typeof event.data === "string" ? heard(event.data) : null;
      if (said?.type === "output") this.show(said.data, said.replay === true);
      else if (said?.type === "connected") {
        this.begin(said.shell ?? "");
        this.listener.heard("open", (message = ""));
      } else if (said?.type === "provisioning") {
        message = said.position ? `${said.message} (place ${said.position})` : said.message;
        this.listener.heard("waiting", message);
      } else if (said && "news" in said) this.told(said.message);
      else if (said) this.listener.heard("waiting", (message = said.message));
    };
    socket.onclose = (event) => {
      if (this.socket !== socket) return;
      this.socket = null;
      this.listener.ended(event.code, event.reason || message, opened);
    };
  }

  selection(): string {
    return this.term.getSelection();
  }

  readAloud(on: boolean): void {
    this.term.options.screenReaderMode = on;
  }

  close(): void {
    this.hangUp();
    for (const end of this.ends) end();
    this.term.dispose();
  }

  private hangUp(): void {
    const socket = this.socket;
    this.socket = null;
    socket?.close();
  }

  private show(data: string | Uint8Array, replay: boolean): void {
    this.empty = false;
    if (!replay) return this.term.write(data);
    this.replayed += 1;
    this.term.write(data, () => (this.replayed -= 1));
  }

  /** The picture of another shell is scrolled away, where it can still be read. */
  private begin(shell: string): void {
    if (!this.empty && shell !== this.shell) this.term.write(`${MODES_OFF}\x1b[${this.term.rows};1H${"\n".repeat(this.term.rows)}\x1b[H`);
    this.shell = shell;
  }

  /** A message on a separate line; not while a program uses the whole screen. */
  private told(message: string): void {
    if (this.term.buffer.active.type !== "normal") return;
    this.term.write(`\r\n\x1b[1m» ${message.replace(/[\p{Cc}\p{Cf}]/gu, " ")}\x1b[0m\r\n`);
  }

  private typed(data: string, binary = false): void {
    const socket = this.socket;
    if (socket?.readyState !== WebSocket.OPEN || (this.replayed > 0 && data.startsWith("\x1b"))) return;
    for (let at = 0; at < data.length; at += PIECE) {
      const piece = data.slice(at, at + PIECE);
      if (this.protocol === "json") socket.send(JSON.stringify({ type: "input", data: piece }));
      else socket.send(binary ? Uint8Array.from(piece, (one) => one.charCodeAt(0)) : new TextEncoder().encode(piece));
    }
  }

  private sized(cols: number, rows: number): void {
    this.listener.sized(cols, rows);
    if (this.protocol !== "json" || this.socket?.readyState !== WebSocket.OPEN) return;
    this.socket.send(JSON.stringify({ type: "resize", cols, rows }));
  }

  private key(event: KeyboardEvent): boolean {
    if (!event.ctrlKey || !event.shiftKey) return true;
    if (event.key === "Enter") {
      if (event.type === "keydown") {
        event.preventDefault();
        this.listener.leave();
      }
      return false;
    }
    if (event.code === "KeyC" && this.term.hasSelection()) {
      event.preventDefault();
      if (event.type === "keydown") void navigator.clipboard?.writeText(this.selection());
      return false;
    }
    return true;
  }

  private fitted(): void {
    if (this.box.clientWidth > 0) this.fit.fit();
  }

  private paint(_theme: string): void {
    const text = colour("text");
    this.term.options.theme = { background: colour("panel"), foreground: text, cursor: text, cursorAccent: colour("panel"), selectionBackground: colour("tint"), selectionForeground: text };
  }
}

// The page's Content-Security-Policy allows stylesheets that carry its nonce, and no style attributes from text. xterm.js
// makes all its stylesheets while it opens; colours that it has no class for it puts into attributes.

interface Inside {
  _core?: { _renderService?: { _renderer?: { value?: { _rowFactory?: { _addStyle?: (element: HTMLElement, style: string) => void } } } } };
}

function openWithin(term: Terminal, box: HTMLElement): void {
  const nonce = document.querySelector<HTMLMetaElement>('meta[name="hostler-nonce"]')?.content ?? "";
  document.createElement = ((tag: string): HTMLElement => {
    const element = Document.prototype.createElement.call(document, tag);
    if (element instanceof HTMLStyleElement) element.nonce = nonce;
    return element;
  }) as Document["createElement"];
  try {
    term.open(box);
  } finally {
    delete (document as Partial<Pick<Document, "createElement">>).createElement;
  }
  const rows = (term as unknown as Inside)._core?._renderService?._renderer?.value?._rowFactory;
  if (rows?._addStyle) rows._addStyle = (element, style) => (element.style.cssText += `${style};`);
  else console.error("terminal: this release of xterm.js draws colours in another way; they are left out");
}
