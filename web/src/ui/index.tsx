// The parts that every page is made of.
import { type ComponentChildren, createContext, type JSX } from "preact";
import { useContext, useEffect, useId, useRef, useState } from "preact/hooks";
import { asProblem } from "../api";
import { toast } from "./toast";

export { confirm, Dialog } from "./dialog";
export { toast } from "./toast";
export { Ago, Clock, Left } from "./time";
export { Steps, type StepShown, type StepState } from "./steps";
export { Tabs } from "./tabs";
export { Tree, type Branch } from "./tree";
export { VirtualTable, type Column } from "./virtual-table";

/** How something is doing. It is always said in words as well. */
export type Look = "good" | "warn" | "bad" | "idle" | "busy";

export function State({ look, children }: { look: Look; children: ComponentChildren }) {
  return <span class={`state ${look}`}>{children}</span>;
}

interface ButtonProps {
  children: ComponentChildren;
  onClick?: () => unknown;
  primary?: boolean;
  danger?: boolean;
  quiet?: boolean;
  small?: boolean;
  submit?: boolean;
  disabled?: boolean;
  /** What it does, where its text alone does not say it. */
  label?: string;
  pressed?: boolean;
}

/** While what it started is under way it cannot be pressed again; it keeps the focus, which a disabled one would lose. */
export function Button(props: ButtonProps) {
  const [pressing, setBusy] = useState(false);
  const sending = useContext(Sending);
  const busy = pressing || (sending && (props.submit ?? false));
  const pressed = (event: Event): void => {
    if (busy) return event.preventDefault();
    const doing = props.onClick?.();
    if (!(doing instanceof Promise)) return;
    setBusy(true);
    void doing.finally(() => setBusy(false));
  };
  const looks = (["primary", "danger", "quiet", "small"] as const).filter((look) => props[look]);
  return (
    <button
      type={props.submit ? "submit" : "button"}
      class={["button", ...looks].join(" ")}
      disabled={props.disabled ?? false}
      aria-disabled={busy || undefined}
      aria-label={props.label}
      aria-pressed={props.pressed}
      aria-busy={busy || undefined}
      onClick={pressed}
    >
      {props.children}
    </button>
  );
}

/** Whether the form around is being sent. */
const Sending = createContext(false);

/** While it is being sent it cannot be sent again, and its button shows that. */
export function Form({ onSubmit, children, label, class: look = "stack" }: { onSubmit: () => unknown; children: ComponentChildren; label?: string; class?: string }) {
  const [busy, setBusy] = useState(false);
  // Between two clicks nothing may have been drawn.
  const sending = useRef(false);
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (sending.current) return;
    sending.current = true;
    setBusy(true);
    try {
      await onSubmit();
    } finally {
      sending.current = false;
      setBusy(false);
    }
  };
  return (
    <form class={look} aria-label={label} onSubmit={(event) => void send(event)}>
      <Sending.Provider value={busy}>{children}</Sending.Provider>
    </form>
  );
}

/** At the end of a form in a dialog: not to do it, and to do it. */
export function Actions({ onClose, action, ready = true }: { onClose: () => void; action: string; ready?: boolean }) {
  return (
    <div class="dialog-actions">
      <Button onClick={onClose}>Cancel</Button>
      <Button submit primary disabled={!ready}>
        {action}
      </Button>
    </div>
  );
}

/** Do it, and tell the user if it fails. True: it was done. */
export async function attempt(action: () => unknown, done?: string): Promise<boolean> {
  try {
    await action();
  } catch (error) {
    const problem = asProblem(error);
    toast(`${sentence(problem.detail || problem.title)} ${sentence(problem.next)}`.trim(), "bad");
    return false;
  }
  if (done) toast(done);
  return true;
}

/** What a server says, as a sentence among others: "list the users" → "List the users." */
export function sentence(text: string): string {
  if (!text) return "";
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?:…]$/.test(text) ? "" : ".");
}

/** What went wrong, and what to do about it. `focus`: it is brought into view, for it may stand far from what was pressed. */
export function Failure({ error, again, focus }: { error: unknown; again?: () => unknown; focus?: boolean }) {
  const problem = asProblem(error);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!focus) return;
    box.current?.focus({ preventScroll: true });
    box.current?.scrollIntoView({ block: "nearest" });
  }, [error, focus]);
  return (
    <div class="note bad" role="alert" ref={box} tabIndex={focus ? -1 : undefined}>
      <p>
        <strong>{problem.detail || problem.title}</strong>
      </p>
      {problem.next && <p>{sentence(problem.next)}</p>}
      {again && (
        <Button small onClick={again}>
          Try again
        </Button>
      )}
    </div>
  );
}

export function Busy({ children }: { children: ComponentChildren }) {
  return (
    <p class="busy" role="status">
      {children} …
    </p>
  );
}

/** Where there is nothing yet: what it would be, and what to do first. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Head({ title, children, crumbs }: { title: ComponentChildren; children?: ComponentChildren; crumbs?: ComponentChildren }) {
  return (
    <div class="page-head">
      <div>
        {crumbs && <div class="crumbs">{crumbs}</div>}
        <h1>{title}</h1>
      </div>
      {children}
    </div>
  );
}

/** The title of a column; of one of numbers it stands over them, at the right. */
export type Heading = ComponentChildren | readonly [title: string, kind: "number"];
const ofNumbers = (heading: Heading): heading is readonly [string, "number"] => Array.isArray(heading) && heading[1] === "number";

/** A table in a box that scrolls by itself. `caption` is for those who cannot see what it stands under. */
export function Table({ caption, head, children }: { caption: string; head: readonly Heading[]; children: ComponentChildren }) {
  return (
    <div class="scroller" tabIndex={0} role="region" aria-label={caption}>
      <table>
        <caption class="unseen">{caption}</caption>
        <thead>
          <tr>
            {head.map((title, i) => (
              <th key={i} scope="col" class={ofNumbers(title) ? "number" : undefined}>
                {ofNumbers(title) ? title[0] : title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

interface FieldProps {
  label: string;
  hint?: ComponentChildren;
  wrong?: string | null | undefined;
  children: (props: { id: string; "aria-describedby": string | undefined; "aria-invalid": boolean }) => JSX.Element;
}

/** A labelled field; what is wrong with it stands under it. */
export function Field({ label, hint, wrong, children }: FieldProps) {
  const id = useId();
  const about = [hint ? `${id}-hint` : "", wrong ? `${id}-wrong` : ""].filter(Boolean).join(" ");
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children({ id, "aria-describedby": about || undefined, "aria-invalid": Boolean(wrong) })}
      {hint && (
        <span class="hint" id={`${id}-hint`}>
          {hint}
        </span>
      )}
      {wrong && (
        <span class="wrong" id={`${id}-wrong`} role="alert">
          {wrong}
        </span>
      )}
    </div>
  );
}

interface TextProps {
  label: string;
  value: string;
  onInput: (value: string) => void;
  hint?: ComponentChildren;
  wrong?: string | null | undefined;
  type?: "text" | "password" | "number" | "search";
  required?: boolean;
  placeholder?: string;
  autocomplete?: string;
  min?: number;
  max?: number;
  step?: number;
  rows?: number;
  mono?: boolean;
  focus?: boolean;
}

export function Text(props: TextProps) {
  const { label, hint, wrong, value, rows } = props;
  const field = wrong === undefined ? { label, hint } : { label, hint, wrong };
  const shared = {
    value,
    required: props.required ?? false,
    placeholder: props.placeholder,
    class: props.mono ? "mono" : undefined,
    autofocus: props.focus ?? false,
  };
  return (
    <Field {...field}>
      {(named) =>
        rows ? (
          <textarea {...named} {...shared} rows={rows} spellcheck={false} onInput={(event) => props.onInput(event.currentTarget.value)} />
        ) : (
          <input
            {...named}
            {...shared}
            type={(props.type ?? "text") as "text"}
            autocomplete={props.autocomplete ?? "off"}
            min={props.min}
            max={props.max}
            step={props.step}
            spellcheck={false}
            onInput={(event) => props.onInput(event.currentTarget.value)}
          />
        )
      }
    </Field>
  );
}

interface SelectProps {
  label: string;
  value: string;
  onChange: (value: string) => void;
  options: readonly (string | readonly [value: string, title: string])[];
  hint?: ComponentChildren;
}

export function Select({ label, value, onChange, options, hint }: SelectProps) {
  return (
    <Field label={label} hint={hint}>
      {(named) => (
        <select {...named} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
          {options.map((option) => {
            const [key, title] = typeof option === "string" ? [option, option] : option;
            return (
              <option key={key} value={key}>
                {title}
              </option>
            );
          })}
        </select>
      )}
    </Field>
  );
}

export function Check({ label, checked, onChange, hint, disabled }: { label: string; checked: boolean; onChange: (checked: boolean) => void; hint?: ComponentChildren; disabled?: boolean }) {
  const id = useId();
  return (
    <div class="check">
      <input id={id} type="checkbox" checked={checked} disabled={disabled ?? false} aria-describedby={hint ? `${id}-hint` : undefined} onChange={(event) => onChange(event.currentTarget.checked)} />
      <label for={id}>
        {label}{" "}
        {hint && (
          <span class="soft small" id={`${id}-hint`}>
            {hint}
          </span>
        )}
      </label>
    </div>
  );
}

/** A text, and a button that copies it, or selects it: a browser gives its clipboard only to pages that came by TLS or
 * from this machine. */
export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [copied, setCopied] = useState(false);
  const shown = useRef<HTMLElement>(null);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
    } catch {
      if (shown.current) getSelection()?.selectAllChildren(shown.current);
      toast("It is selected: copy it with Ctrl+C. The browser lets no page do that which came without https.");
    }
  };
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 2000);
    return () => clearTimeout(timer);
  }, [copied]);
  return (
    <span class="row">
      <code ref={shown}>{text}</code>
      <Button small label={`${label}: ${text}`} onClick={copy}>
        {copied ? "Copied" : label}
      </Button>
    </span>
  );
}

/** A part of a whole, as a bar and in words. */
export function Share({ part, whole, label }: { part: number; whole: number; label: string }) {
  const share = whole > 0 ? Math.min(1, part / whole) : 0;
  return (
    <div class="bar" role="img" aria-label={label}>
      <span style={{ width: `${share * 100}%` }} />
    </div>
  );
}

/** 1536 → "1.5 GiB". */
export function mib(amount: number): string {
  return amount < 1024 ? `${amount} MiB` : `${Number((amount / 1024).toFixed(1))} GiB`;
}

/** "1 machine", "3 machines". */
export function count(n: number, one: string, many = `${one}s`): string {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}
