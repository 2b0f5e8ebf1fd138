// How it stands with a lab, in words.
import { mib, type Look } from "../../ui";
import { span } from "../../ui/time";
import type { Lab, News, Offer, Offers, Template } from "./types";

/** "Files and rights", or "Lab 5" where it has no title. */
export const titleOf = (lab: { labId: number | null; title?: string }): string => lab.title || (lab.labId === null ? "Any lab" : `Lab ${lab.labId}`);

/** "1: Files and rights", or "Lab 5" where it has no title. */
export const numbered = (lab: { labId: number | null; title?: string }): string => (lab.title && lab.labId !== null ? `${lab.labId}: ${lab.title}` : titleOf(lab));

/** Instants within a text, as the clock here shows them. */
export const localTimes = (text: string): string => text.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, (at) => new Date(at).toLocaleString());

export const offerTitle = ({ labId, template }: Offer): string => titleOf({ labId, title: template.title });

/** "1 CPU, 256 MiB". */
export function shapeOf({ image, cpus, memory_mib, disk_gib }: Template): string {
  const disk = disk_gib ? `, ${disk_gib} GiB disk` : "";
  return `${image ? `${image}: ` : ""}${cpus} ${cpus === 1 ? "CPU" : "CPUs"}, ${mib(memory_mib)}${disk}`;
}

/** Its state in a word or two. */
export function stateOf(lab: Lab): [Look, string] {
  if (lab.phase === "waiting") return ["busy", lab.position === null ? "Waiting" : `Waiting, number ${lab.position}`];
  if (lab.phase === "provisioning") return ["busy", "Starting"];
  if (lab.phase === "stopping") return ["idle", lab.again === null ? "Stopping" : `Stopping, then lab ${lab.again}`];
  return lab.available ? ["good", "Ready"] : ["warn", "Does not answer"];
}

/** The state in a sentence, for the user who waits. */
export function happening(lab: Lab): string {
  const detail = lab.detail ? ` (${localTimes(lab.detail)})` : "";
  switch (lab.phase) {
    case "waiting":
      if (lab.position === null) return `Your request is accepted, and the lab is about to start${detail}.`;
      return lab.position === 1 ? `You are next. It begins by itself${detail}.` : `${lab.position - 1} ${lab.position === 2 ? "is" : "are"} before you. It begins by itself${detail}.`;
    case "provisioning":
      return lab.vm && lab.node ? `Your machine starts. The terminal opens by itself${detail}.` : `Your machine is being made${detail}.`;
    case "running":
      return lab.available ? "It is ready." : `Your machine does not answer at present${detail}. It is looked after by itself.`;
    case "stopping":
      return lab.again === null ? "Your machine is being deleted." : `Your machine is being deleted; lab ${lab.again} begins after it.`;
  }
}

export type StepState = "done" | "now" | "later";

/** How far it is: each step with where it stands. */
export function steps(lab: Lab): [string, StepState][] {
  const names = ["Asked for", "Waiting for your turn", "Making the machine", "Starting the machine", "Ready"];
  const here = lab.phase === "waiting" ? 1 : lab.phase === "provisioning" ? (lab.node ? 3 : 2) : 5;
  return names.map((name, i) => [name, i < here ? "done" : i === here ? "now" : "later"]);
}

const EVENTS: Record<string, string> = {
  requested: "Asked for",
  waiting: "Waits for its turn",
  started: "Has a machine",
  available: "Ready",
  extended: "Extended",
  "expires-soon": "Ends soon",
  expired: "Its time was over",
  stopping: "Stops",
  stopped: "Stopped",
  failed: "Failed",
  refused: "Refused",
  ignored: "Ignored",
  already: "Was so already",
  message: "Message",
};

export const eventWord = (event: string): string => EVENTS[event] ?? event;

const ENDS: Record<string, string> = {
  expired: "its time was over",
  stopped: "it was stopped",
  failed: "it failed",
};

/** How the last lab ended; empty: it has not, or its events are gone. */
export function ending(news: News[]): string {
  const last = news.findLast((one) => one.event in ENDS);
  if (!last) return "";
  const reason = last.reason ? ` (${localTimes(last.reason)})` : "";
  return `${last.labId === null ? "The last lab" : `Lab ${last.labId}`} is gone: ${ENDS[last.event]}${reason}.`;
}

/** Whether a new request has to wait. */
function isFull(offers: Offers, offer: Offer): boolean {
  const all = offers.at_once !== null && offers.running >= offers.at_once;
  return all || (offer.template.at_once !== null && offer.running >= offer.template.at_once);
}

/** What a new request can expect. */
export function outlook(offers: Offers, offer: Offer): string {
  if (isFull(offers, offer)) {
    const waiting = offers.waiting;
    return waiting ? `All places are taken, and ${waiting} ${waiting === 1 ? "waits" : "wait"}. Ask, and it begins when it is your turn.` : "All places are taken. Ask, and it begins when one is free.";
  }
  return offer.warm > 0 ? "One is ready: it begins at once." : "It is made for you, which takes a moment.";
}

/** What happens at the end. */
export function afterwards(grace: number): string {
  const first = grace > 0 ? `At the end it is still there for ${span(grace)}; then` : "At the end";
  return `${first} the machine is deleted, with all that is on it. Copy elsewhere what you want to keep. Only a teacher can extend it.`;
}
