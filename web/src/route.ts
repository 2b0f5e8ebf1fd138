// Where the page is: #/vms/acme/web/ID?tab=console → { page: "vms", parts: ["acme", "web", "ID"], query }.
import { signal } from "@preact/signals";

export interface Place {
  page: string;
  parts: string[];
  query: URLSearchParams;
}

function read(): Place {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const pieces = path.split("/").filter(Boolean).map(decoded);
  return { page: pieces[0] ?? "overview", parts: pieces.slice(1), query: new URLSearchParams(query) };
}

function decoded(piece: string): string {
  try {
    return decodeURIComponent(piece);
  } catch {
    return piece;
  }
}

export const route = signal<Place>(read());
addEventListener("hashchange", () => (route.value = read()));

/** The address of a place, with its pieces escaped. */
export function to(page: string, parts: string[] = [], query: Record<string, string> = {}): string {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "")).toString();
  return `#/${[page, ...parts].map(encodeURIComponent).join("/")}${asked ? `?${asked}` : ""}`;
}

/** Go there; `replace` leaves no step in the browser's history. */
export function go(address: string, replace = false): void {
  if (replace) {
    history.replaceState(null, "", address);
    route.value = read();
  } else {
    location.hash = address;
  }
}

/** Set parts of the query, and stay. An empty value takes one away. */
export function setQuery(changes: Record<string, string>): void {
  const { page, parts, query } = route.value;
  go(to(page, parts, { ...Object.fromEntries(query), ...changes }), true);
}
