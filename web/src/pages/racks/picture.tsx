import { effect } from "@preact/signals";
import { useEffect, useId, useRef } from "preact/hooks";
import { go } from "../../route";
import { theme } from "../../theme";
import { Button, count } from "../../ui";
import { boxOf, draw, type Palette, palette } from "./draw";
import { faultyParts, component, floor, type Part, type Rack } from "./floor";
import { at, fitting, type Plan, plan, SCALES, type Scale } from "./layout";
import { feedWord, LOOKS } from "./look";
import { address, chosen, cursor, details, foundAt, hover, keyed, look, marked, only, partAt, rackAt, type Spot, spotAt, stepped, zoom } from "./view";

const KEYS = new Set(["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown", "p", "t"]);
const POINTED_FOR = 120;
/** Of the window's height. */
const TALLEST = 0.62;
/** Pixels. */
const LOWEST = 200;
/** Pixels: where a finger is likely, blades are tall enough for one, whether all of them are in sight or not. */
const NARROW = 480;
const TAPPED = SCALES.findIndex((scale) => scale.pitch > 24);

/** Everything about one canvas, outside of the page's own rendering: it is drawn only when something has changed. */
class Picture {
  private whole: Plan = plan([], SCALES[0] as Scale, 1);
  private colours: Palette = palette();
  private due = 0;
  private pointed: ReturnType<typeof setTimeout> | undefined;
  private readonly stops: (() => void)[] = [];
  private room = { width: 0, height: 0 };
  private tallest = 0;
  level = 0;

  constructor(
    private readonly box: HTMLDivElement,
    private readonly ground: HTMLDivElement,
    private readonly canvas: HTMLCanvasElement,
  ) {
    const watch = new ResizeObserver(() => this.resized());
    watch.observe(box);
    const system = matchMedia("(prefers-color-scheme: dark)");
    const repaint = (): void => {
      this.colours = palette();
      this.invalidate();
    };
    system.addEventListener("change", repaint);
    const wheel = (event: WheelEvent): void => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 1 : -1);
    };
    box.addEventListener("wheel", wheel, { passive: false });
    this.resized();
    this.stops.push(
      () => watch.disconnect(),
      () => system.removeEventListener("change", repaint),
      () => box.removeEventListener("wheel", wheel),
      effect(() => {
        void [floor.value, zoom.value];
        this.arrange();
      }),
      effect(() => {
        void [faultyParts.value, only.value, hover.value, cursor.value, chosen.value, marked.value, details.value];
        this.invalidate();
      }),
      effect(() => {
        void theme.value;
        requestAnimationFrame(repaint);
      }),
    );
  }

  end(): void {
    cancelAnimationFrame(this.due);
    clearTimeout(this.pointed);
    hover.value = null;
    keyed.value = false;
    for (const stop of this.stops) stop();
  }

  invalidate(): void {
    if (this.due) return;
    this.due = requestAnimationFrame(() => {
      this.due = 0;
      this.paint();
    });
  }

  private resized(): void {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (width === this.room.width && height === this.room.height) return;
    this.room = { width, height };
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.arrange();
  }

  private arrange(): void {
    const racks = floor.peek()?.racks ?? [];
    const { width } = this.room;
    if (!width) return;
    const tallest = Math.max(LOWEST, Math.round(innerHeight * TALLEST));
    this.tallest = tallest;
    const fits = fitting(racks, width, tallest);
    this.level = zoom.peek() ?? (width < NARROW ? Math.max(fits, TAPPED) : fits);
    this.whole = plan(racks, SCALES[this.level] as Scale, width);
    this.ground.style.width = `${this.whole.width}px`;
    this.ground.style.height = `${this.whole.height}px`;
    // A small floor needs no large box.
    this.box.style.height = `${Math.max(LOWEST, Math.min(tallest, this.whole.height + 2))}px`;
    this.invalidate();
  }

  private paint(): void {
    const pen = this.canvas.getContext("2d", { alpha: false });
    if (!pen) return;
    const { width, height } = this.room;
    const ratio = devicePixelRatio || 1;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const scene = {
      plan: this.whole,
      colours: this.colours,
      only: only.peek(),
      hover: hover.peek(),
      cursor: document.activeElement === this.canvas ? foundAt(this.whole, cursor.peek()) : null,
      chosen: foundAt(this.whole, chosen.peek()),
      marked: marked.peek(),
      details: details.peek(),
    };
    draw(pen, scene, Math.round(this.box.scrollLeft), Math.round(this.box.scrollTop), width, height);
  }

  /** Closer or further away; what is selected stays where it is, or what is in the middle. */
  zoom(step: number): void {
    const { scrollTop: top, clientHeight: height } = this.box;
    const spot = cursor.peek() ?? chosen.peek();
    const seen = this.whole.cabinets.filter((one) => one.y + one.height > top && one.y < top + height);
    const middle = seen.find((one) => one.rack.key === spot?.rack) ?? seen.find((one) => one.y + one.height > top + height / 2);
    zoom.value = Math.max(0, Math.min(SCALES.length - 1, this.level + step));
    const after = middle && this.whole.cabinets.find((one) => one.rack.key === middle.rack.key);
    if (middle && after) {
      const share = (top + height / 2 - middle.y) / middle.height;
      this.box.scrollTop = after.y + after.height * share - height / 2;
      if (spot?.rack === middle.rack.key) this.show(spot);
    }
    this.invalidate();
  }

  /** As close as all of it can be seen. */
  all(): void {
    zoom.value = this.room.width < NARROW ? fitting(floor.peek()?.racks ?? [], this.room.width, this.tallest) : null;
  }

  /** Bring it into view. */
  show(spot: Spot | null): void {
    const found = foundAt(this.whole, spot);
    const box = found && boxOf(this.whole, found);
    if (!box) return;
    const { scrollTop: top, scrollLeft: left } = this.box;
    const { width, height } = this.room;
    const margin = 40;
    if (box.y < top + margin) this.box.scrollTop = box.y - margin;
    else if (box.y + Math.min(box.height, height - 2 * margin) > top + height - margin) this.box.scrollTop = box.y + Math.min(box.height, height - 2 * margin) - height + margin;
    if (box.x < left) this.box.scrollLeft = box.x - margin;
    else if (box.x + box.width > left + width) this.box.scrollLeft = box.x + box.width - width + margin;
  }

  private under(event: MouseEvent): ReturnType<typeof at> {
    const edge = this.canvas.getBoundingClientRect();
    return at(this.whole, event.clientX - edge.left + this.box.scrollLeft, event.clientY - edge.top + this.box.scrollTop);
  }

  moved(event: PointerEvent): void {
    if (event.pointerType === "touch") return;
    const found = this.under(event);
    const before = hover.peek();
    if (found?.cabinet === before?.cabinet && found?.kind === before?.kind && found?.index === before?.index) return;
    hover.value = found;
    this.canvas.title = found ? said(spotAt(this.whole, found)) : "";
    this.canvas.style.cursor = found ? "pointer" : "default";
    clearTimeout(this.pointed);
    if (found) this.pointed = setTimeout(() => look(spotAt(this.whole, found).rack), POINTED_FOR);
  }

  left(): void {
    clearTimeout(this.pointed);
    hover.value = null;
  }

  clicked(event: MouseEvent): void {
    const found = this.under(event);
    if (!found) return;
    cursor.value = spotAt(this.whole, found);
    open(cursor.value);
  }

  key(event: KeyboardEvent): void {
    if (event.altKey || event.metaKey || event.ctrlKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (KEYS.has(key)) {
      cursor.value = stepped(this.whole, cursor.value ?? chosen.value, key);
      this.show(cursor.value);
    } else if (event.key === "Enter" && cursor.value) open(cursor.value, true);
    else if (event.key === "Escape" && chosen.value) go(address(null));
    else if (event.key === "+" || event.key === "=") this.zoom(1);
    else if (event.key === "-") this.zoom(-1);
    else if (event.key === "0") this.all();
    else return;
    event.preventDefault();
  }
}

/** Open it at the side; `enter`: the keyboard goes there, too. */
function open(spot: Spot, enter = false): void {
  const rack = rackAt(spot);
  if (!rack) return;
  go(address(rack, partAt(spot)?.name ?? ""));
  if (enter) setTimeout(() => document.getElementById("racks-chosen")?.focus(), 50);
}

export function FloorPicture() {
  const box = useRef<HTMLDivElement>(null);
  const ground = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const picture = useRef<Picture | null>(null);
  const help = useId();
  useEffect(() => {
    if (!box.current || !ground.current || !canvas.current) return;
    const made = new Picture(box.current, ground.current, canvas.current);
    picture.current = made;
    made.show(chosen.peek());
    return () => made.end();
  }, []);
  const spot = chosen.value;
  useEffect(() => picture.current?.show(spot), [spot?.rack, spot?.part]);
  return (
    <section class="racks-floor" aria-label="The floor">
      <div class="racks-view" ref={box} onScroll={() => picture.current?.invalidate()}>
        <div ref={ground}>
          <canvas
            ref={canvas}
            class="racks-canvas"
            tabIndex={0}
            role="application"
            aria-label="Picture of the racks"
            aria-describedby={help}
            onPointerMove={(event) => picture.current?.moved(event)}
            onPointerLeave={() => picture.current?.left()}
            onClick={(event) => picture.current?.clicked(event)}
            onKeyDown={(event) => picture.current?.key(event)}
            onFocus={() => {
              keyed.value = true;
              cursor.value ??= chosen.value;
              picture.current?.invalidate();
            }}
            onBlur={() => {
              keyed.value = false;
              picture.current?.invalidate();
            }}
          />
        </div>
      </div>
      <div class="racks-under">
        <p class="racks-said" role="status">
          {said((keyed.value && cursor.value) || chosen.value)}
        </p>
        <div class="row" role="group" aria-label="How close">
          <Button small label="Further away" onClick={() => picture.current?.zoom(-1)}>
            −
          </Button>
          <Button small label="Closer" onClick={() => picture.current?.zoom(1)}>
            +
          </Button>
          <Button small label="As close as all of it can be seen" onClick={() => picture.current?.all()}>
            All of it
          </Button>
        </div>
        <p class="soft small racks-help" id={help}>
          Arrow keys go from blade to blade, Page Up and Page Down from row to row, P and T to the pdus and tors of the rack. Enter opens, Escape closes, + and − zoom.
        </p>
      </div>
    </section>
  );
}

/** What the keyboard is at, or what is open. */
function said(spot: Spot | null): string {
  const rack = rackAt(spot);
  if (!rack || !spot) return "Nothing is selected.";
  const part = partAt(spot);
  if (!part) return `Rack ${rack.name}: ${rack.objection || "in use"}, ${count(rack.blades.length, "blade")}.`;
  return describe(rack, part);
}

function describe(rack: Rack, part: Part): string {
  const where = rack.loose ? part.name : `${rack.name}/${part.name}`;
  if (part.kind !== "blade") return `${part.kind === "pdu" ? "Pdu" : "Tor"} ${where}: ${part.feed ? feedWord(part.feed, faultyParts.value.get(component(rack, part.name))).toLowerCase() : ""}.`;
  return `${rack.loose ? "Node" : "Blade"} ${where}: ${LOOKS[part.look].word.toLowerCase()}, ${count(rack.vms[part.index] ?? 0, "machine")}.`;
}
