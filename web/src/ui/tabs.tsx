import type { ComponentChildren } from "preact";
import { useId, useLayoutEffect, useRef } from "preact/hooks";
import { bring } from "./sideways";

interface TabsProps {
  label: string;
  tabs: readonly (readonly [name: string, title: string])[];
  current: string;
  onChange: (name: string) => void;
  children: ComponentChildren;
}

/** Pixels of the next tab that stay visible next to the selected one. */
const PEEK = 24;

/** Arrow keys go from tab to tab, as everywhere. */
export function Tabs({ label, tabs, current, onChange, children }: TabsProps) {
  const id = useId();
  const list = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const box = list.current;
    const tab = box?.querySelector<HTMLElement>('[aria-selected="true"]');
    if (box && tab) bring(box, tab, PEEK);
  }, [current]);
  const move = (event: KeyboardEvent): void => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const here = tabs.findIndex(([name]) => name === current);
    const there = Math.abs(step) === 1 ? (here + step + tabs.length) % tabs.length : step < 0 ? 0 : tabs.length - 1;
    const next = tabs[there];
    if (!next) return;
    onChange(next[0]);
    list.current?.querySelectorAll<HTMLElement>('[role="tab"]')[there]?.focus();
  };
  return (
    <div>
      <div class="tabs" role="tablist" aria-label={label} ref={list} onKeyDown={move}>
        {tabs.map(([name, title]) => (
          <button
            key={name}
            type="button"
            role="tab"
            id={`${id}-${name}`}
            aria-selected={name === current}
            aria-controls={`${id}-panel`}
            tabIndex={name === current ? 0 : -1}
            onClick={() => onChange(name)}
          >
            {title}
          </button>
        ))}
      </div>
      <div role="tabpanel" id={`${id}-panel`} aria-labelledby={`${id}-${current}`}>
        {children}
      </div>
    </div>
  );
}
