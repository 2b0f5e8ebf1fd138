// Light, dark, or as the system has it. It is remembered by the browser.
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const KEY = "hostler-theme";

function remembered(): Theme {
  const found = localStorage.getItem(KEY);
  return found === "light" || found === "dark" ? found : "system";
}

export const theme = signal<Theme>(remembered());

effect(() => {
  if (theme.value === "system") {
    localStorage.removeItem(KEY);
    delete document.documentElement.dataset["theme"];
  } else {
    localStorage.setItem(KEY, theme.value);
    document.documentElement.dataset["theme"] = theme.value;
  }
});

/** The value of one of theme.css's colours now, for a canvas. */
export function colour(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
