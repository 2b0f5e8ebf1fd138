// What GET /v1/overview answers.

export interface Leader {
  address: string;
  holder: string;
  fence: number;
  since: number | null;
  ends_at: number | null;
  ttl: number | null;
}

export interface Replica {
  address: string;
  holder: string;
  leads: boolean;
  key: number | null;
  started_at: number;
}

export interface Takeover {
  fence: number;
  holder: string;
  address: string;
  at: number;
  previous_holder: string;
  previous_address: string;
  previous: "none" | "released" | "silent";
  released_at: number | null;
}

export interface Store {
  answers: boolean;
  silent_for: number | null;
  revision: number | null;
  engine: string;
  version: string;
  size_bytes: number | null;
  quota_bytes: number | null;
  writable: boolean;
  problem: string;
}

export interface Concern {
  what: string;
  count: number;
  examples: { object: string; name: string; detail: string; since: number | null }[];
}

export interface AtWork {
  name: string;
  phase: string;
  detail: string;
  ready: number;
  instances: number;
}

export type Counts = Record<string, number>;

export interface Overview {
  at: number;
  ready: boolean;
  control: { leader: Leader | null; replicas: Replica[]; takeovers: Takeover[] } | null;
  store: Store;
  nodes: Counts;
  vms: Counts;
  labs: Counts;
  blueprints: Counts;
  deployments: AtWork[];
  attention: Concern[];
  /** Its time is not ours, and its replicas are on the page of racks. */
  simulation: boolean;
}
