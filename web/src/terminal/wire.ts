// What goes over the WebSocket of a terminal.

export type Protocol = "bytes" | "json";

/** What the server says in docs/terminal.md's messages. */
export type Said =
  | { type: "connected"; /** Another one than before is a new shell. */ shell?: string }
  | { type: "output"; data: string; /** It was written before this connection. */ replay?: boolean }
  | { type: "info" | "error"; message: string; /** What it is besides: the terminal is as it was. */ news?: string }
  | { type: "provisioning"; message: string; status: string; position?: number };

/** The message, or null if it is none that is known. */
export function heard(text: string): Said | null {
  try {
    const said = JSON.parse(text) as Said;
    return typeof said === "object" && said !== null && typeof said.type === "string" ? said : null;
  } catch {
    return null;
  }
}

const CODES: Record<number, string> = {
  1000: "It has ended.",
  1001: "The server closes.",
  1003: "The server did not understand the page. Load the page again.",
  1006: "The connection was lost.",
  1008: "Your session has ended, or you may no longer be here.",
  1009: "Too much was sent at once.",
  1011: "The server cannot go on.",
  1012: "The server is started again.",
  4001: "It was opened elsewhere, and goes on there.",
  4004: "There is no lab, or it is gone.",
};

/** Ends of a connection, not of what is behind it: the page connects again by itself. */
export const LOST: ReadonlySet<number> = new Set([1001, 1006, 1012]);

/** Why it ended: in the server's own words where it had some. */
export function explained(code: number, message: string, opened: boolean, shut?: string): string {
  if (!opened) return shut ?? "It did not open: what is behind it may be off, or cannot be reached.";
  return message || CODES[code] || `It has ended (${code}).`;
}
