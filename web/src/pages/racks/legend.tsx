import { useEffect, useRef } from "preact/hooks";
import { setQuery } from "../../route";
import { theme } from "../../theme";
import { palette, shaped } from "./draw";
import { counts } from "./floor";
import { type LookName, LOOKS, NAMES } from "./look";
import { only } from "./view";

/** The sign of a state, as the picture has it. */
export function Sign({ look }: { look: LookName }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const chosen = theme.value;
  useEffect(() => {
    const paint = (): void => {
      const pen = canvas.current?.getContext("2d");
      if (!pen) return;
      pen.clearRect(0, 0, 22, 12);
      pen.fillStyle = palette()[LOOKS[look].colour];
      shaped(pen, LOOKS[look].shape, 0, 0, 22, 12);
    };
    const system = matchMedia("(prefers-color-scheme: dark)");
    const frame = requestAnimationFrame(paint);
    system.addEventListener("change", paint);
    return () => {
      cancelAnimationFrame(frame);
      system.removeEventListener("change", paint);
    };
  }, [look, chosen]);
  return <canvas ref={canvas} class="racks-sign" width={22} height={12} aria-hidden="true" />;
}

/** What the signs mean, how many there are, and a filter. */
export function Legend() {
  const found = counts.value;
  const chosen = only.value;
  const shown = NAMES.filter((name) => found[name] > 0 || name === chosen || name === "on_duty");
  return (
    <ul class="racks-legend" aria-label="States of blades">
      {shown.map((name) => (
        <li key={name}>
          <button type="button" class="racks-key" aria-pressed={chosen === name} onClick={() => setQuery({ state: chosen === name ? "" : name })}>
            <Sign look={name} /> {LOOKS[name].word} <span class="number">{found[name].toLocaleString("en")}</span>
          </button>
        </li>
      ))}
    </ul>
  );
}
