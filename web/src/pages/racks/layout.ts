// Where each rack and each thing in it stands, in whole pixels. Racks stand side by side on the ground of their row;
// rows are of one zone, and as wide as there is room for.
import type { Rack } from "./floor";

export interface Scale {
  /** From one blade to the next. */
  pitch: number;
  /** Of a blade. */
  width: number;
  /** Of a pdu, which hangs at the side. */
  strip: number;
  /** Between blades and their neighbours: cables run here. */
  gutter: number;
  /** Of a tor. */
  tor: number;
  /** Of the name above. */
  head: number;
  gap: number;
}

/** From afar to close by. */
export const SCALES: readonly Scale[] = [
  { pitch: 3, width: 16, strip: 2, gutter: 2, tor: 3, head: 4, gap: 6 },
  { pitch: 5, width: 30, strip: 3, gutter: 3, tor: 5, head: 14, gap: 8 },
  { pitch: 8, width: 46, strip: 4, gutter: 4, tor: 8, head: 16, gap: 12 },
  { pitch: 13, width: 84, strip: 6, gutter: 7, tor: 13, head: 20, gap: 16 },
  { pitch: 19, width: 128, strip: 12, gutter: 12, tor: 18, head: 24, gap: 22 },
  { pitch: 26, width: 190, strip: 14, gutter: 18, tor: 24, head: 30, gap: 28 },
  { pitch: 34, width: 250, strip: 16, gutter: 22, tor: 30, head: 36, gap: 36 },
];

export interface Cabinet {
  rack: Rack;
  x: number;
  y: number;
  width: number;
  height: number;
  row: number;
}

export interface Row {
  y: number;
  height: number;
  /** Indexes of cabinets. */
  first: number;
  last: number;
  /** Above the first row of a zone. */
  title: string;
  titleY: number;
}

export interface Plan {
  scale: Scale;
  cabinets: Cabinet[];
  rows: Row[];
  width: number;
  height: number;
}

const TITLE = 30;
const EDGE = 12;
const FOOT = 4;

const sides = (rack: Rack, scale: Scale): number => (rack.pdus.length > 1 ? 2 : rack.pdus.length) * (scale.strip + 1);
const cabinetWidth = (rack: Rack, scale: Scale): number => scale.width + 2 * scale.gutter + sides(rack, scale) + 4;
const cabinetHeight = (rack: Rack, scale: Scale): number => scale.head + rack.tors.length * scale.tor + rack.blades.length * scale.pitch + FOOT;

export function titleOf(rack: Rack): string {
  if (rack.loose) return "Nodes that are not in the inventory";
  if (!rack.region) return "Racks of no region";
  return rack.zone ? `${rack.region} / ${rack.zone}` : rack.region;
}

export function plan(racks: readonly Rack[], scale: Scale, room: number): Plan {
  const cabinets: Cabinet[] = [];
  const rows: Row[] = [];
  let y = EDGE;
  let widest = room;
  for (let i = 0; i < racks.length; ) {
    const place = titleOf(racks[i] as Rack);
    const begun = rows.at(-1);
    const fresh = !begun || titleOf(racks[i - 1] as Rack) !== place;
    const title = fresh ? place : "";
    const titleY = y;
    if (fresh) y += TITLE;
    let x = EDGE;
    let tallest = 0;
    const first = cabinets.length;
    for (; i < racks.length; i += 1) {
      const rack = racks[i] as Rack;
      const width = cabinetWidth(rack, scale);
      if (titleOf(rack) !== place || (x > EDGE && x + width > room - EDGE)) break;
      const height = cabinetHeight(rack, scale);
      cabinets.push({ rack, x, y, width, height, row: rows.length });
      tallest = Math.max(tallest, height);
      x += width + scale.gap;
    }
    widest = Math.max(widest, x - scale.gap + EDGE);
    // They are aligned at the bottom, regardless of their height.
    for (const one of cabinets.slice(first)) one.y = y + tallest - one.height;
    rows.push({ y, height: tallest, first, last: cabinets.length - 1, title, titleY });
    y += tallest + scale.gap + 8;
  }
  return { scale, cabinets, rows, width: widest, height: y };
}

/** The largest zoom at which all racks are visible, with neighbours next to each other. */
export function fitting(racks: readonly Rack[], width: number, height: number): number {
  for (let level = SCALES.length - 1; level > 0; level -= 1) {
    const found = plan(racks, SCALES[level] as Scale, width);
    if (found.height <= height && found.width <= width && (level <= 2 || !lonely(found))) return level;
  }
  return 0;
}

/** A zone of several racks whose racks stand one above the other. */
function lonely({ rows }: Plan): boolean {
  return rows.some((row, i) => !row.title && row.first === row.last && rows[i - 1]?.first === rows[i - 1]?.last);
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

const leftStrip = ({ rack }: Cabinet, scale: Scale): number => (rack.pdus.length ? scale.strip + 1 : 0);

/** Where a blade is in its cabinet. */
export function bladeBox(cabinet: Cabinet, scale: Scale, index: number): Box {
  return {
    x: cabinet.x + 2 + leftStrip(cabinet, scale) + scale.gutter,
    y: cabinet.y + scale.head + cabinet.rack.tors.length * scale.tor + index * scale.pitch,
    width: scale.width,
    height: scale.pitch - 1,
  };
}

export function torBox(cabinet: Cabinet, scale: Scale, index: number): Box {
  const { x, width } = bladeBox(cabinet, scale, 0);
  return { x, y: cabinet.y + scale.head + index * scale.tor, width, height: scale.tor - 2 };
}

/** The first pdu hangs at the left, the second at the right. */
export function pduBox(cabinet: Cabinet, scale: Scale, index: number): Box {
  const x = index === 0 ? cabinet.x + 2 : cabinet.x + cabinet.width - 2 - scale.strip;
  const y = cabinet.y + scale.head;
  return { x, y, width: scale.strip, height: cabinet.height - scale.head - FOOT };
}

export interface Found {
  cabinet: number;
  kind: "rack" | "tor" | "blade" | "pdu";
  index: number;
}

const within = (box: Box, x: number, y: number, slack = 0): boolean =>
  x >= box.x - slack && x < box.x + box.width + slack && y >= box.y && y < box.y + box.height + 1;

/** What is at this place; null: the floor itself. */
export function at(whole: Plan, x: number, y: number): Found | null {
  const row = whole.rows.find((one) => y >= one.y && y < one.y + one.height);
  if (!row) return null;
  for (let i = row.first; i <= row.last; i += 1) {
    const cabinet = whole.cabinets[i] as Cabinet;
    if (x < cabinet.x || x >= cabinet.x + cabinet.width || y < cabinet.y) continue;
    const { rack } = cabinet;
    const scale = whole.scale;
    for (let n = 0; n < rack.tors.length; n += 1) if (within(torBox(cabinet, scale, n), x, y)) return { cabinet: i, kind: "tor", index: n };
    for (let n = 0; n < rack.pdus.length; n += 1) if (within(pduBox(cabinet, scale, n), x, y, 2)) return { cabinet: i, kind: "pdu", index: n };
    const blades = bladeBox(cabinet, scale, 0);
    const index = Math.floor((y - blades.y) / scale.pitch);
    if (y >= blades.y && index < rack.blades.length) return { cabinet: i, kind: "blade", index };
    return { cabinet: i, kind: "rack", index: 0 };
  }
  return null;
}
