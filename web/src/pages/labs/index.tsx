// Labs. A student has one page for the own lab; a teacher has all labs, and each with its events.
import { labProject } from "../../objects";
import { Empty, Head } from "../../ui";
import { route } from "../../route";
import { me } from "../../session";
import { mine } from "./data";
import { One } from "./one";
import { Student } from "./student";
import { Teacher } from "./teacher";
import "./labs.css";

export default function Page() {
  const users = mine();
  if (users?.length === 0) return <None />;
  const [own] = users ?? [];
  if (users?.length === 1 && own !== undefined) return <Student user={own} key={own} />;
  const [user] = route.value.parts;
  return user === undefined ? <Teacher /> : <One user={user} key={user} />;
}

function None() {
  const name = me.value?.name ?? "NAME";
  // What is not named there would be taken away.
  const members = [...(me.value?.memberships ?? []), `labs/${labProject(name)}`].map((one) => `--member ${one}`).join(" ");
  return (
    <>
      <Head title="Labs" />
      <Empty title="There is no lab for your account">
        <p>An account manager can give you one:</p>
        <code>hostler user update {name} {members}</code>
      </Empty>
    </>
  );
}
