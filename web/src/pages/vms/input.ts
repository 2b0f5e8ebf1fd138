// What people type into the forms of machines, and what the server says of it.
import { Problem } from "../../api";
import type { Labels } from "./types";

/** "app=web, tier=a" or a pair per line. A string is what is wrong with it. */
export function labelsOf(text: string): Labels | string {
  const found: Labels = {};
  for (const pair of text.split(/[,\n]/).map((one) => one.trim()).filter(Boolean)) {
    const at = pair.indexOf("=");
    if (at < 1) return `“${pair}”: write name=value, several with a comma in between.`;
    const name = pair.slice(0, at).trim();
    if (name in found) return `“${name}” is given twice.`;
    found[name] = pair.slice(at + 1).trim();
  }
  return found;
}

export const labelsText = (labels: Labels): string =>
  Object.entries(labels)
    .map(([name, value]) => `${name}=${value}`)
    .join(", ");

const UNITS: Record<string, number> = { s: 1, m: 60, min: 60, h: 3600, d: 86400 };

/** "30m", "2h", "1d" in seconds; null: nothing. A string is what is wrong with it. */
export function durationOf(text: string): number | null | string {
  if (!text.trim()) return null;
  const found = /^\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d)\s*$/.exec(text);
  const seconds = found ? Number(found[1]) * (UNITS[found[2] ?? ""] ?? 0) : 0;
  return seconds > 0 ? seconds : "Write a number and a unit: 30m, 2h or 1d.";
}

/** A whole number from `least` on; NaN is never answered: a string is what is wrong. */
export function wholeOf(text: string, least: number): number | string {
  const found = Number(text);
  return text.trim() !== "" && Number.isInteger(found) && found >= least ? found : `Write a whole number, ${least} or more.`;
}

const QUOTA = /: (vms|cpus|memory_mib|disk_gib) would be /;

/** Which field of the form a refusal is about: the last name of `$.spec.cpus`; null: none. */
export function fieldOf(problem: Problem): string | null {
  const placed = /\$\.([A-Za-z_.]+)/.exec(problem.detail);
  if (placed) return placed[1]?.split(".").filter((one) => one !== "spec")[0] ?? null;
  const over = QUOTA.exec(problem.detail);
  if (over) return over[1] === "vms" ? "name" : (over[1] ?? null);
  return problem.kind === "conflict" ? "name" : null;
}
