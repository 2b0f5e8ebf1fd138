import type { ComponentChildren } from "preact";

export interface Branch {
  key: string;
  content: ComponentChildren;
  children?: Branch[];
}

/** What led to what: nested lists, which every screen reader knows how to tell. */
export function Tree({ branches, label }: { branches: Branch[]; label?: string }) {
  return (
    <ul class="tree" aria-label={label}>
      {branches.map((branch) => (
        <li key={branch.key}>
          {branch.content}
          {branch.children?.length ? <Tree branches={branch.children} /> : null}
        </li>
      ))}
    </ul>
  );
}
