"""`hostler workload list`, `status`: commands that only read; the state of a workload as text."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.failure import note
from hostler.entry.cli.options import (
    all_of,
    chosen_server,
    complete,
    open_client,
    read,
    server_options,
    show_all,
    with_client,
)
from hostler.entry.cli.show import moment, size
from hostler.errors import NotFound, Unavailable
from hostler.kit.plural import counted
from hostler.model.vm_api import VmPhase

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.vm import Affinity, VmSpec
    from hostler.model.workload_api import InstanceView, WorkloadView


LOOK_EVERY = 1.0
SHOWN = 200
"""Instances that `status` shows by default."""
HEADS = ("NAME", "PHASE", "READY", "UPDATED", "PENDING", "PROJECT", "DETAIL")
INSTANCES = ("INSTANCE", "PHASE", "READY", "NODE", "MACHINE", "WHY")


def ready_of(view: WorkloadView) -> str:
    """Format ready instances of all instances."""
    return f"{view.ready}/{view.instances}"


def described(view: WorkloadView) -> str:
    """Describe the state of the workload in a few words."""
    detail = f": {view.detail}" if view.detail else ""
    more = [f"{number} {what}" for number, what in ((view.pending, "pending"), (view.leaving, "leaving")) if number]
    return f"{view.phase.value}, {ready_of(view)} ready{''.join(f', {part}' for part in more)}{detail}"


@click.command("list")
@show.output_option
@with_client
async def list_(client: Client, *, output: str) -> None:
    """List all workloads that you can see."""
    found = [view async for view in all_of(client, client.workloads.list)]
    show_all(found, output, HEADS, _row, "no workloads; create one: hostler workload apply FILE")


def _row(view: WorkloadView) -> list[str]:
    cells = [view.name, view.phase.value, ready_of(view), f"{view.updated}/{view.instances}", str(view.pending)]
    return [show.safe(cell) for cell in (*cells, f"{view.org}/{view.project}", view.detail)]


@click.command()
@click.argument("name")
@click.option("--watch", "watching", is_flag=True, help="Keep running, and show each change, until it is gone.")
@click.option("--limit", type=click.IntRange(min=0), default=SHOWN, show_default=True, help="Instances to show.")
@show.output_option
@server_options
def status(name: str, watching: bool, limit: int, output: str) -> None:
    """Show the progress of the workload NAME, and for each instance its node, or why it has none."""
    server = chosen_server()
    complete(_watch(server, name, limit, output) if watching else _status(server, name, limit, output))


async def _status(server: Server, name: str, limit: int, output: str) -> None:
    async with open_client(server) as client:
        view = await read(client, lambda stale: client.workloads.get(name, stale=stale))
        instances = await _instances(client, name, limit)
    if output != "table":
        show.emit({**msgspec.to_builtins(view), "items": msgspec.to_builtins(instances)}, output)
        return
    show.pairs(_rows(view))
    if instances:
        click.echo()
        show.Columns(*INSTANCES).rows([_instance_row(one) for one in instances])
    if len(instances) < view.made + view.leaving:
        more = counted(view.made + view.leaving - len(instances), "more instance")
        note(f"{more}; see all with --limit")


async def _instances(client: Client, name: str, limit: int) -> list[InstanceView]:
    """Return the first `limit` instances."""
    return [one async for one in all_of(client, partial(client.workloads.instances, name), limit)]


def _rows(view: WorkloadView) -> list[tuple[str, str]]:
    rollout = view.rollout
    found = [
        ("NAME", view.name),
        ("PROJECT", f"{view.org}/{view.project}"),
        ("PHASE", f"{view.phase.value}{f': {view.detail}' if view.detail else ''}"),
        ("READY", f"{ready_of(view)}{'' if view.enabled else ' (disabled)'}"),
        ("UPDATED", f"{view.updated}/{view.instances} of template {view.template}"),
        ("PENDING", str(view.pending) if view.pending else ""),
        ("LEAVING", str(view.leaving) if view.leaving else ""),
        ("SIZE", _shape(view.spec)),
        ("RULES", "; ".join(_rule(rule) for rule in view.affinity)),
        ("NODE LABELS", _labels(view.node_labels)),
        ("LABELS", _labels(view.labels)),
        ("ON NODE LOSS", view.on_node_loss.value),
        ("RESTART", view.restart.value),
        ("ROLLOUT", f"at most {rollout.max_unavailable} unavailable, {rollout.max_surge} surplus"),
        ("CREATED", moment(view.created_at)),
        ("REVISION", str(view.revision)),
    ]
    return [(name, show.safe(text)) for name, text in found if text]


def _shape(spec: VmSpec) -> str:
    disk = f", {spec.disk_gib} GiB disk" if spec.disk_gib else ""
    needs = [f"arch {spec.arch}"] if spec.arch else []
    needs += [
        counted(number, f"accelerator {kind}", f"accelerators {kind}") for kind, number in spec.accelerators.items()
    ]
    needs += [f"volume {name}" for name in spec.volumes]
    shape = f"{counted(spec.cpus, 'cpu')}, {size(spec.memory_mib)}{disk}, image {spec.image or '(default)'}"
    return ", ".join([shape, *needs])


def _rule(rule: Affinity) -> str:
    who = f"machines with {_labels(rule.labels)}" if rule.labels else "each other"
    how = "on one" if rule.together else "on another"
    return (
        f"{how} {rule.level.value} {'with' if rule.together else 'than'} {who}{'' if rule.required else ' (preferred)'}"
    )


def _labels(labels: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items())


def _instance_row(one: InstanceView) -> list[str]:
    cells = [
        *(one.instance, "leaving" if one.leaving else one.phase.value, "yes" if one.ready else "no"),
        *(one.node or "", one.name, _why(one)),
    ]
    return [show.safe(cell) for cell in cells]


def _why(one: InstanceView) -> str:
    """Return why the instance is not in its desired state; if it is, why it is on its node."""
    said = one.detail
    if not said and one.phase is VmPhase.PENDING:
        said = "; ".join(f"{reason.subject}: {reason.why}" for reason in one.reasons)
    elif not said and one.reasons:
        said = one.reasons[0].why
    older = "" if one.updated else f"of template {one.template}, to be replaced"
    return "; ".join(part for part in (older, said) if part)


async def _watch(server: Server, name: str, limit: int, output: str) -> None:
    """Print the workload and its instances, then each change. Polls, so that an outage misses nothing."""
    watched, found = _Watched(name, output), False
    async with open_client(server) as client:
        while True:
            try:
                view = await client.workloads.get(name)
                instances = await _instances(client, name, limit)
            except NotFound:
                if not found:
                    raise
                watched.gone()
                return
            except Unavailable as error:
                note(f"{error}; retrying")
                await asyncio.sleep(LOOK_EVERY * 3)
                continue
            found = True
            watched.tell(view, instances)
            await asyncio.sleep(LOOK_EVERY)


class _Watched:
    """What was already shown of one workload."""

    def __init__(self, name: str, output: str) -> None:
        self._name, self._output = name, output
        self._said, self._instances = "", dict[str, list[str]]()

    def tell(self, view: WorkloadView, instances: list[InstanceView]) -> None:
        if (said := described(view)) != self._said:
            self._said = said
            self._show(f"{self._name}: {said}", msgspec.to_builtins(view))
        now = {one.instance: _instance_row(one) for one in instances}
        for one in instances:
            if self._instances.get(one.instance) != now[one.instance]:
                _, phase, ready, node, _, why = now[one.instance]
                on, because = f" on {node}" if node else "", f": {why}" if why else ""
                serves = ", ready" if ready == "yes" else ""
                self._show(f"{self._name}/{one.instance}: {phase}{on}{serves}{because}", msgspec.to_builtins(one))
        for number in self._instances.keys() - now.keys():
            self._show(f"{self._name}/{number}: gone", {"instance": number, "phase": "gone"})
        self._instances = now

    def gone(self) -> None:
        self._show(f"{self._name}: gone", {"name": self._name, "phase": "gone"})

    def _show(self, line: str, plain: Any) -> None:
        show.tell(line, plain, self._output)
