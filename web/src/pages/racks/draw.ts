// The picture. Only what is visible is drawn, state by state, so that colours change seldom; all of it in whole pixels.
import { colour } from "../../theme";
import { faultyParts, bladeLook, component, fold } from "./floor";
import { type Box, bladeBox, type Cabinet, type Found, pduBox, type Plan, torBox } from "./layout";
import { feedLook, type LookName, LOOKS, NAMES, type Shape } from "./look";
import type { Feed, RackDetail } from "./types";

const COLOURS = ["ground", "panel", "raised", "line", "text", "soft", "accent", "good", "warn", "bad", "idle", "focus", "good-tint", "warn-tint", "bad-tint"] as const;
export type Palette = Record<(typeof COLOURS)[number], string>;

export function palette(): Palette {
  return Object.fromEntries(COLOURS.map((name) => [name, colour(name)])) as Palette;
}

export interface Scene {
  plan: Plan;
  colours: Palette;
  /** Null: all of them. */
  only: LookName | null;
  hover: Found | null;
  /** Where the keyboard is. */
  cursor: Found | null;
  /** What is open at the side. */
  chosen: Found | null;
  /** Found by the search: `rack` or `rack/part`, folded. */
  marked: ReadonlySet<string>;
  /** Racks whose cables are known. */
  details: ReadonlyMap<string, RackDetail>;
}

type Pen = CanvasRenderingContext2D;

/** From this on names can be read. */
const READABLE = 13;

export function draw(pen: Pen, scene: Scene, left: number, top: number, width: number, height: number): void {
  const { plan, colours } = scene;
  pen.fillStyle = colours.ground;
  pen.fillRect(0, 0, width, height);
  pen.save();
  pen.translate(-left, -top);
  const seen = visible(plan, left, top, width, height);
  titles(pen, scene, top, height);
  cabinets(pen, scene, seen);
  blades(pen, scene, seen);
  feeds(pen, scene, seen);
  if (plan.scale.pitch >= READABLE) labels(pen, scene, seen);
  for (const found of [scene.chosen, scene.cursor, scene.hover]) if (found) cables(pen, scene, found);
  marks(pen, scene, seen);
  pen.restore();
}

function visible(plan: Plan, left: number, top: number, width: number, height: number): Cabinet[] {
  const found: Cabinet[] = [];
  for (const row of plan.rows) {
    if (row.y > top + height || row.y + row.height < top) continue;
    for (let i = row.first; i <= row.last; i += 1) {
      const one = plan.cabinets[i] as Cabinet;
      if (one.x < left + width && one.x + one.width > left) found.push(one);
    }
  }
  return found;
}

function titles(pen: Pen, { plan, colours }: Scene, top: number, height: number): void {
  pen.fillStyle = colours.soft;
  pen.font = "600 13px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  for (const row of plan.rows) if (row.title && row.titleY + 30 > top && row.titleY < top + height) pen.fillText(row.title, 12, row.titleY + 14);
}

function frame(pen: Pen, { x, y, width, height }: Box, thick = 1): void {
  pen.fillRect(x, y, width, thick);
  pen.fillRect(x, y + height - thick, width, thick);
  pen.fillRect(x, y + thick, thick, height - 2 * thick);
  pen.fillRect(x + width - thick, y + thick, thick, height - 2 * thick);
}

function cabinets(pen: Pen, scene: Scene, seen: Cabinet[]): void {
  const { colours, plan } = scene;
  const { head, pitch, gutter } = plan.scale;
  const close = pitch >= READABLE;
  ground(pen, scene, seen);
  pen.fillStyle = colours.panel;
  for (const one of seen) pen.fillRect(one.x, one.y, one.width, one.height);
  pen.fillStyle = colours.raised;
  for (const one of seen) pen.fillRect(one.x, one.y, one.width, head - 2);
  pen.fillStyle = colours.idle;
  for (const one of seen) {
    frame(pen, one);
    if (!close) continue;
    const rail = bladeBox(one, plan.scale, 0);
    pen.globalAlpha = 0.35;
    pen.fillRect(rail.x - 2, rail.y, 1, one.rack.blades.length * pitch);
    pen.fillRect(rail.x + rail.width + 1, rail.y, 1, one.rack.blades.length * pitch);
    pen.globalAlpha = 1;
  }
  if (head < 14) return;
  pen.textBaseline = "middle";
  for (const one of seen) {
    const { rack } = one;
    const middle = one.y + (head - 2) / 2;
    let room = one.width - 10;
    if (close) {
      const duty = `${rack.states.filter((state) => state === "on_duty").length}/${rack.blades.length}`;
      pen.font = "11px system-ui, sans-serif";
      pen.textAlign = "right";
      pen.fillStyle = colours.soft;
      pen.fillText(duty, one.x + one.width - 6, middle);
      room -= 12 + gutter + duty.length * 7;
    }
    pen.textAlign = "left";
    pen.font = `600 ${pitch >= 26 ? 14 : close ? 13 : 10}px system-ui, sans-serif`;
    pen.fillStyle = rack.objection ? colours.warn : colours.text;
    pen.fillText(clipped(pen, rack.name, room), one.x + 6, middle);
  }
}

/** What they stand on. */
function ground(pen: Pen, { plan, colours }: Scene, seen: Cabinet[]): void {
  pen.fillStyle = colours.idle;
  const feet = Math.max(2, plan.scale.gutter >> 1);
  for (const one of seen) {
    pen.fillRect(one.x + feet, one.y + one.height, feet, 3);
    pen.fillRect(one.x + one.width - 2 * feet, one.y + one.height, feet, 3);
  }
  pen.fillStyle = colours.line;
  for (const number of new Set(seen.map((one) => one.row))) {
    const row = plan.rows[number] as Plan["rows"][number];
    pen.fillRect(0, row.y + row.height + 3, plan.width, 1);
  }
}

const widths = new Map<string, number>();

/** As much of a text as there is room for. */
function clipped(pen: Pen, text: string, room: number): string {
  const key = pen.font + text;
  let width = widths.get(key);
  if (width === undefined) {
    width = pen.measureText(text).width;
    if (widths.size > 5000) widths.clear();
    widths.set(key, width);
  }
  if (width <= room) return text;
  const fits = Math.floor((text.length * room) / width) - 1;
  return fits > 0 ? `${text.slice(0, fits)}…` : "";
}

function blades(pen: Pen, scene: Scene, seen: Cabinet[]): void {
  const { plan, colours } = scene;
  const { pitch, width } = plan.scale;
  const broken = faultyParts.value;
  const close = pitch >= READABLE;
  const height = pitch - 1;
  const by = new Map<LookName, number[]>(NAMES.map((name) => [name, []]));
  for (const one of seen) {
    const box = bladeBox(one, plan.scale, 0);
    for (let i = 0; i < one.rack.blades.length; i += 1) by.get(bladeLook(one.rack, i, broken))?.push(box.x, box.y + i * pitch);
  }
  for (const [name, places] of by) {
    if (!places.length) continue;
    const look = LOOKS[name];
    const faded = scene.only !== null && scene.only !== name;
    if (close) {
      pen.fillStyle = faded || look.colour === "idle" || look.colour === "accent" ? colours.raised : colours[`${look.colour}-tint`];
      for (let i = 0; i < places.length; i += 2) pen.fillRect(places[i] as number, places[i + 1] as number, width, height);
    }
    pen.fillStyle = faded ? colours.line : colours[look.colour];
    const sign = close ? Math.round(pitch * 0.9) : width;
    for (let i = 0; i < places.length; i += 2) shaped(pen, faded ? "thin" : look.shape, places[i] as number, places[i + 1] as number, sign, height);
  }
}

/** One sign, made of rectangles only. */
export function shaped(pen: Pen, shape: Shape, x: number, y: number, width: number, height: number): void {
  const half = width >> 1;
  const third = Math.max(1, Math.floor(width / 3));
  const bar = Math.max(1, Math.floor(width / 7));
  const low = Math.max(1, Math.round(height / 3));
  switch (shape) {
    case "full":
      return pen.fillRect(x, y, width, height);
    case "left":
      return pen.fillRect(x, y, half, height);
    case "right":
      return pen.fillRect(x + width - half, y, half, height);
    case "split":
      pen.fillRect(x, y, third, height);
      return pen.fillRect(x + width - third, y + height - low, third, low);
    case "flag":
      frame(pen, { x, y, width, height });
      return pen.fillRect(x, y, third, height);
    case "frame":
      return frame(pen, { x, y, width, height });
    case "bars":
      for (let i = 0; i < 7; i += 2) pen.fillRect(x + i * bar, y, bar, height);
      return;
    case "ends":
      pen.fillRect(x, y, bar + 1, height);
      return pen.fillRect(x + width - bar - 1, y, bar + 1, height);
    case "top":
      return pen.fillRect(x, y, width, low);
    case "checks":
      pen.fillRect(x, y, half, Math.ceil(height / 2));
      return pen.fillRect(x + half, y + (height >> 1), width - half, height - (height >> 1));
    case "line":
      return pen.fillRect(x, y + ((height - 1) >> 1), width, 1);
    case "dots":
      for (let i = 0; i < 3; i += 1) pen.fillRect(x + i * third, y + height - low, Math.max(1, third - 2), low);
      return;
    case "low":
      return pen.fillRect(x, y + height - low, half, low);
    case "thin":
      return pen.fillRect(x, y + height - 1, width, 1);
  }
}

function feeds(pen: Pen, scene: Scene, seen: Cabinet[]): void {
  const { plan, colours } = scene;
  const broken = faultyParts.value;
  for (const one of seen) {
    const { rack } = one;
    rack.pdus.forEach((pdu, n) => feed(pen, colours, pduBox(one, plan.scale, n), feedLook(pdu, broken.get(component(rack, pdu.name))), true));
    rack.tors.forEach((tor, n) => feed(pen, colours, torBox(one, plan.scale, n), feedLook(tor, broken.get(component(rack, tor.name))), false, plan.scale.pitch));
  }
}

/** One that works is grey: only what needs a look has a colour, and a shape. */
function feed(pen: Pen, colours: Palette, box: Box, look: LookName, upright: boolean, pitch = 0): void {
  const close = pitch >= READABLE;
  const tint = LOOKS[look].colour;
  pen.fillStyle = !close || look === "on_duty" || tint === "idle" || tint === "accent" ? colours.raised : colours[`${tint}-tint`];
  pen.fillRect(box.x, box.y, box.width, box.height);
  if (look === "on_duty") {
    pen.fillStyle = colours.idle;
    if (upright) pen.fillRect(box.x + (box.width >> 1), box.y, 1, box.height);
    else pen.fillRect(box.x, box.y + box.height - 1, box.width, 1);
    return;
  }
  pen.fillStyle = colours[LOOKS[look].colour];
  if (upright) for (let y = 0; y < box.height; y += 6) pen.fillRect(box.x, box.y + y, box.width, Math.min(4, box.height - y));
  else shaped(pen, LOOKS[look].shape, box.x, box.y, close ? Math.round(pitch * 0.9) : box.width, box.height);
}

function labels(pen: Pen, scene: Scene, seen: Cabinet[]): void {
  const { plan, colours, only } = scene;
  const { pitch, tor, width } = plan.scale;
  const broken = faultyParts.value;
  const size = pitch >= 34 ? 13 : pitch >= 24 ? 12 : pitch >= 18 ? 11 : 9;
  const sign = Math.round(pitch * 0.9);
  pen.textBaseline = "middle";
  for (const one of seen) {
    const { rack } = one;
    const first = bladeBox(one, plan.scale, 0);
    pen.textAlign = "left";
    pen.font = `${size}px system-ui, sans-serif`;
    rack.pdus.slice(0, 2).forEach((each, n) => upright(pen, colours, each.name, pduBox(one, plan.scale, n)));
    pen.fillStyle = colours.text;
    rack.tors.forEach((each, n) => pen.fillText(clipped(pen, each.name, width - sign - 8), first.x + sign + 5, torBox(one, plan.scale, n).y + (tor - 3) / 2));
    for (let i = 0; i < rack.blades.length; i += 1) {
      const look = bladeLook(rack, i, broken);
      const faded = only !== null && only !== look;
      const middle = first.y + i * pitch + (pitch - 1) / 2;
      pen.fillStyle = faded ? colours.idle : colours.text;
      const room = width - sign - 8;
      const sideways = pitch >= 24 && look !== "on_duty" ? LOOKS[look].word : look === "on_duty" ? "" : LOOKS[look].letter;
      pen.fillText(clipped(pen, rack.blades[i] ?? "", room * (sideways.length > 1 ? 0.5 : 0.8)), first.x + sign + 5, middle);
      if (sideways) {
        pen.textAlign = "right";
        pen.fillText(clipped(pen, sideways, room * 0.6), first.x + width - 5, middle);
        pen.textAlign = "left";
      } else machines(pen, colours, rack.vms[i] ?? 0, first.x + width - 4, first.y + i * pitch, pitch, Math.floor(room * 0.55));
    }
  }
}

/** The name of a pdu, from below to above, where it is wide enough to hold it. */
function upright(pen: Pen, colours: Palette, name: string, box: Box): void {
  if (box.width < 12) return;
  const font = pen.font;
  pen.font = `${box.width - 3}px system-ui, sans-serif`;
  const text = clipped(pen, name, box.height - 10);
  if (text) {
    const long = Math.ceil(pen.measureText(text).width) + 6;
    pen.save();
    pen.translate(box.x, box.y + ((box.height + long) >> 1));
    pen.rotate(-Math.PI / 2);
    pen.fillStyle = colours.raised;
    pen.fillRect(0, 0, long, box.width);
    pen.fillStyle = colours.text;
    pen.fillText(text, 3, box.width / 2);
    pen.restore();
  }
  pen.font = font;
}

/** A machine is a small square, from the right; more than there is room for are a number. */
function machines(pen: Pen, colours: Palette, many: number, right: number, y: number, pitch: number, room: number): void {
  if (!many) return;
  const side = Math.max(3, Math.round(pitch / 4));
  const top = y + ((pitch - 1 - side) >> 1);
  if (many * (side + 2) > room) {
    pen.textAlign = "right";
    pen.fillStyle = colours.soft;
    pen.fillText(String(many), right, y + (pitch - 1) / 2);
    pen.textAlign = "left";
    return;
  }
  pen.fillStyle = colours.accent;
  for (let i = 0; i < many; i += 1) pen.fillRect(right - (i + 1) * (side + 2) + 2, top, side, side);
}

/** Of a blade its own cables, of anything else all that end there. */
function cables(pen: Pen, scene: Scene, found: Found): void {
  const cabinet = scene.plan.cabinets[found.cabinet];
  const detail = cabinet && scene.details.get(cabinet.rack.key);
  if (!cabinet || !detail) return;
  const { rack } = cabinet;
  const { scale } = scene.plan;
  const broken = faultyParts.value;
  const index = new Map(rack.blades.map((name, i) => [fold(name), i]));
  const close = scale.pitch >= READABLE;
  const wire = (kind: "pdu" | "tor", feed: Feed, n: number): void => {
    const live = feedLook(feed, broken.get(component(rack, feed.name))) === "on_duty";
    for (const [port, { item, wired }] of Object.entries(feed.ports)) {
      if (!wired || item === null) continue;
      const blade = index.get(fold(item));
      const own = found.kind === "blade" && blade === found.index;
      const ends = found.kind === "rack" || own || (found.kind === kind && found.index === n);
      if (!ends) continue;
      const whole = live && !broken.has(`${component(rack, feed.name)}:${port}`);
      pen.strokeStyle = whole ? (kind === "pdu" ? scene.colours.warn : scene.colours.accent) : scene.colours.bad;
      pen.lineWidth = own && close ? 2 : 1;
      pen.setLineDash(whole ? [] : [3, 3]);
      if (blade === undefined) continue;
      if (kind === "pdu") power(pen, cabinet, scene.plan, n, blade);
      else network(pen, cabinet, scene.plan, n, blade);
    }
  };
  detail.pdus.forEach((feed, n) => wire("pdu", feed, n));
  detail.tors.forEach((feed, n) => wire("tor", feed, n));
  pen.setLineDash([]);
}

function power(pen: Pen, cabinet: Cabinet, { scale }: Plan, pdu: number, blade: number): void {
  const box = bladeBox(cabinet, scale, blade);
  const strip = pduBox(cabinet, scale, pdu);
  const y = box.y + (box.height >> 1) + 0.5;
  pen.beginPath();
  if (pdu === 0) {
    pen.moveTo(strip.x + strip.width, y);
    pen.lineTo(box.x, y);
  } else {
    pen.moveTo(strip.x, y);
    pen.lineTo(box.x + box.width, y);
  }
  pen.stroke();
}

/** Out at the right, and up next to the blades. */
function network(pen: Pen, cabinet: Cabinet, { scale }: Plan, tor: number, blade: number): void {
  const box = bladeBox(cabinet, scale, blade);
  const end = torBox(cabinet, scale, tor);
  const x = box.x + box.width + Math.max(1, Math.round((scale.gutter * (tor + 1)) / 3)) + 0.5;
  const y = box.y + Math.round(box.height / 3) + 0.5;
  pen.beginPath();
  pen.moveTo(box.x + box.width, y);
  pen.lineTo(x, y);
  pen.lineTo(x, end.y + (end.height >> 1) + 0.5);
  pen.lineTo(end.x + end.width, end.y + (end.height >> 1) + 0.5);
  pen.stroke();
}

export function boxOf(plan: Plan, found: Found): Box | null {
  const cabinet = plan.cabinets[found.cabinet];
  if (!cabinet) return null;
  if (found.kind === "blade") return bladeBox(cabinet, plan.scale, found.index);
  if (found.kind === "tor") return torBox(cabinet, plan.scale, found.index);
  return found.kind === "pdu" ? pduBox(cabinet, plan.scale, found.index) : cabinet;
}

function marks(pen: Pen, scene: Scene, seen: Cabinet[]): void {
  const { plan, colours, marked } = scene;
  const ring = (found: Found | null, ink: string, thick: number): void => {
    const box = found && boxOf(plan, found);
    if (!box) return;
    pen.fillStyle = ink;
    const out = thick + 1;
    frame(pen, { x: box.x - out, y: box.y - out, width: box.width + 2 * out, height: box.height + 2 * out }, thick);
  };
  if (marked.size) {
    for (const one of seen) {
      const cabinet = plan.cabinets.indexOf(one);
      if (marked.has(one.rack.key)) ring({ cabinet, kind: "rack", index: 0 }, colours.accent, 2);
      one.rack.blades.forEach((name, index) => {
        if (marked.has(`${one.rack.key}/${fold(name)}`)) ring({ cabinet, kind: "blade", index }, colours.accent, 2);
      });
    }
  }
  ring(scene.hover, colours.soft, 1);
  ring(scene.chosen, colours.text, 2);
  ring(scene.cursor, colours.focus, 2);
}
