// The one way to the server: JSON under /v1, errors as problem documents (docs/api.md).
import { fetchTimed } from "./clock";

/** What went wrong, in the server's words. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly type: string,
    readonly title: string,
    readonly detail: string,
    readonly next: string,
  ) {
    super(detail || title);
  }

  /** The last piece of the type: `not-found`, `quota-exceeded`. */
  get kind(): string {
    return this.type.split("/").pop() ?? "";
  }
}

export interface Page<T> {
  items: T[];
  after: string | null;
  revision?: number;
}

export interface Extra {
  ifMatch?: number;
  signal?: AbortSignal;
  /** In place of JSON. */
  raw?: { body: BodyInit; type: string };
  /** The answer is taken as it is: it may be none of JSON. */
  text?: boolean;
}

/** Writes that take no Idempotency-Key: another try could do them twice. */
const ONCE = /^(POST \/v1\/(sessions(\/.*)?|blueprint-files|inventory\/(read|plan)|invoke\/.*|.*\/(tickets|plan))|PUT \/v1\/artifacts\/.*|[A-Z]+ \/v1\/(sim|routes)\/.*)$/;
const REPEAT_AFTER = 1000;

let csrf = "";
let signedOut: () => void = () => {};
let swapped: (refused: Problem) => Promise<Problem> = async (refused) => refused;

/** Sets the session of a signed-in page; `whenSignedOut` is called when the session has ended, `whenSwapped` when the browser has
 * another session: it returns the problem to show. */
export function useSession(value: string, whenSignedOut: () => void, whenSwapped: typeof swapped): void {
  csrf = value;
  signedOut = whenSignedOut;
  swapped = whenSwapped;
}

export const get = <T>(path: string, extra?: Extra): Promise<T> => ask<T>("GET", path, undefined, extra);
export const post = <T>(path: string, body?: unknown, extra?: Extra): Promise<T> => ask<T>("POST", path, body, extra);
export const put = <T>(path: string, body?: unknown, extra?: Extra): Promise<T> => ask<T>("PUT", path, body, extra);
export const patch = <T>(path: string, body?: unknown, extra?: Extra): Promise<T> => ask<T>("PATCH", path, body, extra);
export const del = <T>(path: string, extra?: Extra): Promise<T> => ask<T>("DELETE", path, undefined, extra);

/** A path with its pieces escaped: at`/v1/users/${name}`. */
export function at(pieces: TemplateStringsArray, ...values: (string | number)[]): string {
  return pieces.reduce((path, piece, i) => path + encodeURIComponent(String(values[i - 1])) + piece);
}

/** A path with a query; what is undefined, null or empty is left out. */
export function withQuery(path: string, query: Record<string, string | number | boolean | null | undefined>): string {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") found.set(name, String(value));
  }
  const text = found.toString();
  return text ? `${path}?${text}` : path;
}

/** Every page of a list, one after the other. */
export async function* pages<T>(path: string, limit = 1000, signal?: AbortSignal): AsyncGenerator<Page<T>> {
  let after: string | null = null;
  do {
    const whole: string = withQuery(path, { limit, after });
    const page: Page<T> = await get<Page<T>>(whole, signal ? { signal } : undefined);
    yield page;
    after = page.after;
  } while (after !== null);
}

/** All of a list. For lists that are known to be short. */
export async function all<T>(path: string): Promise<T[]> {
  const found: T[] = [];
  for await (const page of pages<T>(path)) found.push(...page.items);
  return found;
}

/** How often a change is sent while others write the same record. */
const CHANGE_TRIES = 4;

/**
 * Change a record as it was shown; `read` reads it again, or is the path it has. Where the record was written since then, the refusal stands only if one of `fields`
 * differs, those that the user decided by. Otherwise the change is sent again with the new revision: an agent that updates
 * its node's capacity does not refuse a drain.
 */
export async function changeShown<T extends { revision: number }, R>(shown: T, fields: (keyof T)[], read: string | (() => Promise<T>), send: (extra: Extra) => Promise<R>): Promise<R> {
  const decided = (record: T): string => JSON.stringify(fields.map((field) => record[field]));
  let revision = shown.revision;
  for (let tried = 1; ; tried += 1) {
    try {
      return await send({ ifMatch: revision });
    } catch (error) {
      if (asProblem(error).status !== 412 || tried >= CHANGE_TRIES) throw error;
      const now = await (typeof read === "string" ? get<T>(read) : read());
      if (decided(now) !== decided(shown)) throw error;
      revision = now.revision;
    }
  }
}

/** A request that is already answered; for streams and files. */
export async function open(path: string, extra?: Extra): Promise<Response> {
  return send("GET", path, undefined, extra);
}

async function ask<T>(method: string, path: string, body: unknown, extra?: Extra): Promise<T> {
  const answer = await send(method, path, body, extra);
  const text = await answer.text();
  if (extra?.text) return text as T;
  return (text ? JSON.parse(text) : null) as T;
}

async function send(method: string, path: string, body: unknown, extra: Extra = {}): Promise<Response> {
  const headers: Record<string, string> = {};
  const asked: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
  if (method !== "GET") {
    headers["Hostler-Csrf"] = csrf;
    // The browser may send a request again by itself when a connection breaks; so do we. It is done once all the same.
    headers["Idempotency-Key"] = newKey();
    if (extra.ifMatch !== undefined) headers["If-Match"] = `"${extra.ifMatch}"`;
  }
  if (extra.raw) {
    headers["Content-Type"] = extra.raw.type;
    asked.body = extra.raw.body;
  } else if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    asked.body = JSON.stringify(body);
  }
  if (extra.signal) asked.signal = extra.signal;
  let answer: Response;
  try {
    answer = await fetched(path, asked, method !== "GET" && !ONCE.test(`${method} ${path}`));
  } catch (error) {
    if (isAbort(error)) throw error;
    const next = method === "GET" ? "Check that it runs and that you are connected; the page tries again." : "Look whether it was done before you try again.";
    throw new Problem(0, "about:hostler/unreachable", "No answer", "The server did not answer.", next);
  }
  if (answer.ok) return answer;
  const problem = await problemOf(answer);
  // A wrong password is answered with 401 too, and then there is no session.
  if (answer.status === 401 && path !== "/v1/sessions/browser") signedOut();
  throw answer.status === 403 && problem.kind === "csrf" ? await swapped(problem) : problem;
}

/** The answer. `repeat`: if none came, or its outcome is uncertain, the request is sent once more with the same key. */
async function fetched(path: string, asked: RequestInit, repeat: boolean): Promise<Response> {
  try {
    const answer = await fetchTimed(path, asked);
    if (!repeat || answer.status !== 503) return answer;
    if (!["uncertain", "unavailable"].includes((await problemOf(answer.clone())).kind)) return answer;
  } catch (error) {
    if (!repeat || isAbort(error)) throw error;
  }
  await new Promise((done) => setTimeout(done, REPEAT_AFTER));
  return fetchTimed(path, asked);
}

const isAbort = (error: unknown): boolean => error instanceof DOMException && error.name === "AbortError";

/** Made by hand: crypto.randomUUID is missing on a page that was loaded without TLS from another machine. */
function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function problemOf(answer: Response): Promise<Problem> {
  try {
    const told = (await answer.json()) as Partial<Record<"type" | "title" | "detail" | "next", string>>;
    return new Problem(answer.status, told.type ?? "", told.title ?? answer.statusText, told.detail ?? "", told.next ?? "");
  } catch {
    return new Problem(answer.status, "", answer.statusText || `Status ${answer.status}`, "The answer is not one of Hostler's.", "A proxy may stand in between; look there.");
  }
}

/** A thrown value as a problem. */
export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem(0, "about:hostler/page", "The page failed", error instanceof Error ? error.message : String(error), "Load the page again; if it happens again, report it.");
}
