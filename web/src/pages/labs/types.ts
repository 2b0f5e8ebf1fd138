// What the API says of labs (docs/api.md), as far as these pages use it.

export type Phase = "waiting" | "provisioning" | "running" | "stopping";

export interface Lab {
  user: string;
  labId: number;
  title: string;
  phase: Phase;
  available: boolean;
  ssh_user: string;
  address: string;
  port: number;
  cloud_status: string;
  vm: string;
  node: string;
  /** Among those that wait, from 1. */
  position: number | null;
  requested_at: number;
  /** null while it waits. */
  expires_at: number | null;
  grace: number;
  /** The lab that is started once this one is gone. */
  again: number | null;
  detail: string;
  generation: number;
}

export interface News {
  number: number;
  at: number;
  event: string;
  labId: number | null;
  reason: string;
}

export interface Template {
  title: string;
  image: string;
  cpus: number;
  memory_mib: number;
  disk_gib: number;
  life: number;
  grace: number;
  warn: number;
  at_once: number | null;
  warm: number;
}

export interface Offer {
  /** null: every number is a lab of this kind. */
  labId: number | null;
  template: Template;
  running: number;
  waiting: number;
  warm: number;
  /** What is wrong with it on the nodes that there are. */
  problems: string[];
}

export interface Offers {
  items: Offer[];
  at_once: number | null;
  running: number;
  waiting: number;
}

export interface Answer {
  news: News;
  lab: Lab | null;
}

export interface Why {
  state: string;
  since: number;
  steps: { id: string; at: number; actor: string; subject: string; why: string }[];
}
