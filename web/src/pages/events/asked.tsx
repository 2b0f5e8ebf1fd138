import { useEffect, useState } from "preact/hooks";
import { route, setQuery } from "../../route";
import { Button, Empty, Text } from "../../ui";
import { Why } from "../../why";

/** A field for the name of an object; what is asked for lives in the hash. */
export function ObjectField({ action, optional }: { action: string; optional?: boolean }) {
  const object = route.value.query.get("object") ?? "";
  const [text, setText] = useState(object);
  useEffect(() => setText(object), [object]);
  return (
    <form
      class="panel events-object"
      onSubmit={(event) => {
        event.preventDefault();
        setQuery({ object: text.trim() });
      }}
    >
      <Text
        label={optional ? "Only about" : "About"}
        type="search"
        value={text}
        onInput={setText}
        hint="vm/ORG/PROJECT/NAME, node/NAME, rack/NAME, lab/USER, workload/NAME, blueprint/NAME, slice/GROUP:NAME; or a name that only one of them has"
      />
      <Button submit primary>
        {action}
      </Button>
    </form>
  );
}

export function Asked() {
  const object = route.value.query.get("object") ?? "";
  return (
    <div class="stack">
      <ObjectField action="Ask why" />
      {object ? (
        <section class="panel" aria-label="The answer">
          <Why object={object} />
        </section>
      ) : (
        <Empty title="Ask about anything">
          <p>Why does a machine run on its node, why is a node idle, why is a rollout not finished? Name an object and see every decision that led to its state, down to the request.</p>
          <p>
            From a terminal: <code>hostler why vm/NAME</code>
          </p>
        </Empty>
      )}
    </div>
  );
}
