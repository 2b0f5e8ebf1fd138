// What happens as it happens, what was decided and what led to it, and why something is as it is.
import { route, setQuery } from "../../route";
import { Head, Tabs } from "../../ui";
import { Asked } from "./asked";
import { Follow } from "./live";
import { Past } from "./past";
import "./events.css";

const TABS = [
  ["live", "Live"],
  ["past", "Decisions"],
  ["why", "Explain"],
] as const;

export default function Page() {
  const view = route.value.query.get("view") ?? "live";
  return (
    <>
      <Head title="Events" />
      <Tabs label="Events" tabs={TABS} current={view} onChange={(name) => setQuery({ view: name === "live" ? "" : name })}>
        {view === "past" ? <Past /> : view === "why" ? <Asked /> : <Follow />}
      </Tabs>
    </>
  );
}
