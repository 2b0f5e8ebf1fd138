// Verbs of the audit log and of requests, in words.

const DID: Record<string, string> = {
  "blueprint.apply": "applied",
  "blueprint.delete": "deleted",
  "blueprint.rollback": "rolled back",
  "brake.release": "released the brake",
  "console.open": "opened the serial port of",
  "inventory.load": "loaded the inventory",
  "lab.extend": "extended",
  "lab.message": "wrote to its user",
  "lab.start": "started",
  "lab.stop": "stopped",
  "node.activate": "put on duty",
  "node.confirm-off": "confirmed off",
  "node.drain": "drained",
  "node.forget": "forgot",
  "project.create": "created",
  "project.record": "recorded",
  "quota.delete": "took the limits away",
  "quota.set": "set the limits",
  "refused.budget": "was refused: too many requests",
  "refused.credential": "was refused without a valid token",
  "refused.others": "more refused requests",
  "refused.right": "was refused for lack of a right",
  "refused.sign-in": "failed to sign in",
  "session.begin": "signed in",
  "session.end": "signed out",
  "shell.open": "opened a shell in",
  "ssh.open": "opened SSH to",
  "terminal.open": "opened the terminal of",
  "ticket.console": "used a ticket for the serial port",
  "ticket.issue": "was given a ticket",
  "ticket.shell": "used a ticket for a shell",
  "ticket.ssh": "used a ticket for SSH",
  "ticket.terminal": "used a ticket for the terminal",
  "ticket.web": "used a link to sign in",
  "token.issue": "made a token",
  "token.revoke": "revoked a token",
  "user.create": "created",
  "user.delete": "deleted",
  "user.first": "made the first account",
  "user.recover": "recovered",
  "user.update": "changed",
  "vm.create": "created",
  "vm.delete": "deleted",
  "vm.drop-snapshot": "deleted a snapshot",
  "vm.expire": "ended: its time was over",
  "vm.move": "moved",
  "vm.reset": "reset",
  "vm.restore": "restored",
  "vm.snapshot": "took a snapshot",
  "vm.start": "started",
  "vm.stop": "stopped",
  "vm.update": "changed",
  "workload.apply": "applied",
  "workload.delete": "deleted",
  "workload.scale": "scaled",
};

const KINDS: Record<string, string> = {
  vm: "machine",
  user: "account",
  token: "token",
  session: "session",
  shell: "shell",
  ticket: "ticket",
  project: "project",
  refused: "refused",
  quota: "quota",
};

export const did = (verb: string): string => DID[verb] ?? verb;

/** Where "it" is not at the end, or is said already. */
const DID_IT: Record<string, string> = {
  "blueprint.rollback": "rolled it back",
  "lab.message": "wrote to its user",
  "node.activate": "put it on duty",
  "node.confirm-off": "confirmed that it is off",
  "console.open": "opened its serial port",
  "shell.open": "opened a shell in it",
  "ssh.open": "opened SSH to it",
  "terminal.open": "opened its terminal",
  "vm.expire": "ended it: its time was over",
};

/** The same of something that was just named: "created it", "opened a terminal". */
export function didIt(verb: string): string {
  const words = did(verb);
  return DID_IT[verb] ?? (/^[a-z]+$/.test(words) ? `${words} it` : words);
}

const kindOf = (verb: string): string => verb.split(".")[0] ?? "";
const kinds = [...new Set(Object.keys(DID).map(kindOf))];

/** For the filter: everything, everything of one kind, one verb. */
export const VERBS: readonly (readonly [verb: string, title: string])[] = [
  ["", "Anything"],
  ...kinds.flatMap((kind) => [
    [`${kind}.`, `Any of: ${KINDS[kind] ?? kind}`] as const,
    ...Object.entries(DID)
      .filter(([verb]) => kindOf(verb) === kind)
      .map(([verb, words]) => [verb, `${KINDS[kind] ?? kind}: ${words}`] as const),
  ]),
];
