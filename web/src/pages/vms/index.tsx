// Machines: #/vms is the list, #/vms/new makes one, #/vms/ORG/PROJECT/ID is one of them.
import { route } from "../../route";
import { Create } from "./create";
import { Detail } from "./detail";
import { List } from "./list";
import "./vms.css";

export default function Page() {
  const { parts } = route.value;
  const [org = "", project = "", vm = ""] = parts;
  if (parts.length === 3) return <Detail key={parts.join("/")} org={org} project={project} vm={vm} />;
  if (org === "new" && parts.length === 1) return <Create />;
  return <List />;
}
