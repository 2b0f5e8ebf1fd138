// What a machine or a slice said last: read when it is shown, and when one asks again.
import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import type { VmLog } from "../api-types";
import { Busy, Button, Empty, Failure } from "./index";

interface LogProps {
  /** Where it is read: what is answered has a `text`. */
  path: string;
  label: string;
  about: string;
  class: string;
}

export function Log({ path, label, about, class: look }: LogProps) {
  const [text, setText] = useState<string | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const load = async (): Promise<void> => {
    try {
      setText((await get<VmLog>(path)).text);
      setFailure(null);
    } catch (error) {
      setFailure(error);
    }
  };
  useEffect(() => {
    void load();
  }, [path]);
  if (failure) return <Failure error={failure} again={load} />;
  if (text === null) return <Busy>Reading what it said</Busy>;
  return (
    <div class="stack">
      <div class="row apart">
        <p class="soft small">{about}, at most 256 KiB. Control characters are shown, not obeyed.</p>
        <Button small onClick={load}>
          Read it again
        </Button>
      </div>
      {text ? (
        <pre class={look} tabIndex={0} aria-label={label}>
          {harmless(text)}
        </pre>
      ) : (
        <Empty title="It said nothing yet" />
      )}
    </div>
  );
}

/** Control characters as the pictures that Unicode has for them; colours and the like are left out. */
export function harmless(text: string): string {
  return text
    .replace(/\r+\n/g, "\n")
    .replace(/\x1b\[[0-9;]*m/g, "")
    .replace(/[\x00-\x08\x0b-\x1f]/g, (one) => String.fromCharCode(0x2400 + one.charCodeAt(0)))
    .replace(/[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, "␡");
}
