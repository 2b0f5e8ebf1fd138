// Dialogs are the browser's own: focus stays inside, Escape closes, and goes back to where it was.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Button, Text } from ".";

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  wide?: boolean;
  /** Escape does not close it: what it shows is not shown again. */
  stays?: boolean;
}

export function Dialog({ title, onClose, children, wide, stays }: DialogProps) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useLayoutEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    dialog?.showModal();
    return () => {
      dialog?.close();
      // The browser gives the focus back only while the dialog is still in the page, and here it may be gone already.
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={ref}
      class={wide ? "wide" : undefined}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        if (!stays) onClose();
      }}
      onKeyDown={(event) => {
        // A browser lets no page say no to a second Escape in a row, unless it never becomes one.
        if (stays && event.key === "Escape") event.preventDefault();
      }}
    >
      <h2 id={id}>{title}</h2>
      {children}
    </dialog>
  );
}

export interface Question {
  title: string;
  /** What will happen. */
  text: ComponentChildren;
  /** The verb on the button. */
  action: string;
  danger?: boolean;
  /** What must be typed to go on, for what cannot be undone. */
  typed?: string;
}

interface Asked extends Question {
  answer: (yes: boolean) => void;
}

const asked = signal<Asked | null>(null);

/** Ask before something is done that hurts. */
export function confirm(question: Question): Promise<boolean> {
  asked.value?.answer(false);
  return new Promise((done) => {
    asked.value = {
      ...question,
      answer: (yes) => {
        asked.value = null;
        done(yes);
      },
    };
  });
}

/** Shows questions. When it is removed, open questions are answered with no: the next user may be another. */
export function Confirmations() {
  const question = asked.value;
  useEffect(() => () => asked.peek()?.answer(false), []);
  return question && <Confirmation key={question.title} {...question} />;
}

function Confirmation({ title, text, action, danger, typed, answer }: Asked) {
  const [said, say] = useState("");
  const ready = !typed || said === typed;
  return (
    <Dialog title={title} onClose={() => answer(false)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (ready) answer(true);
        }}
      >
        <div>{text}</div>
        {typed && <Text label={`Type ${typed} to go on`} value={said} onInput={say} focus />}
        <div class="dialog-actions">
          <Button onClick={() => answer(false)}>Cancel</Button>
          <Button submit primary={!danger} danger={danger ?? false} disabled={!ready}>
            {action}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
