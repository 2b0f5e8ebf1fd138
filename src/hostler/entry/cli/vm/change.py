"""`hostler vm create`, `update`, `start`, `stop`, `reset`, `delete`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import UNSET

from hostler.entry.cli import show
from hostler.entry.cli.failure import note
from hostler.entry.cli.options import chosen_server, complete, open_client, project_options, server_options
from hostler.entry.cli.progress import ask_if_seen, can_ask, yes_option
from hostler.entry.cli.show import Duration, Mebibytes, accelerators, labels
from hostler.entry.cli.vm.wait import described, until_settled, wait_options
from hostler.errors import Invalid
from hostler.model.vm import Affinity, Level, OnNodeLoss, Power, VmSpec, architecture
from hostler.model.vm_api import VmCreate, VmUpdate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.vm_api import VmView


LEVELS = ", ".join(level.value for level in Level)
_PLACE = "LEVEL:NAME=VALUE"


class _RenamedOption(click.Option):
    """An option whose second name is that of an earlier release: it works, and the help does not show it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


def _rules(name: str, former: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option for rules of placement."""
    field = name.removeprefix("--").replace("-", "_")
    return click.option(name, former, field, cls=_RenamedOption, multiple=True, metavar=_PLACE, help=text)


@click.command()
@click.argument("name", required=False)
@click.option("--cpus", type=int, default=1, show_default=True, help="Cores.")
@click.option("--memory", type=Mebibytes(), default="512M", show_default=True, help="Memory: 512M, 2G.")
@click.option("--disk", type=int, default=0, show_default=True, metavar="GIB", help="The size of the disk.")
@click.option("--image", default="", help="The image. Default: the default image of the node.")
@click.option("--user", default="", help="The login user. Default: the user of the image.")
@click.option("--user-data", "user_data", type=click.Path(path_type=Path), metavar="FILE", help="For the first boot.")
@click.option("--network-config", type=click.Path(path_type=Path), metavar="FILE", help="For images with cloud-init.")
@click.option("--ssh-key", "ssh_key", multiple=True, metavar="FILE", help="A public key; repeatable.")
@click.option("--no-ssh-key", "bare", is_flag=True, help="Without Hostler's own key, which vm ssh uses.")
@click.option("--cpu-share", type=int, default=100, show_default=True, help="CPU weight when cores are scarce.")
@click.option("-l", "--label", "label", multiple=True, metavar="NAME=VALUE", help="A label; repeatable.")
@click.option("--expires", type=Duration(), help="Delete the machine after this time: 30m, 2h, 1d.")
@click.option("--off", is_flag=True, help="Create the machine switched off.")
@click.option(
    "--on-node-loss",
    type=click.Choice([each.value for each in OnNodeLoss]),
    default=OnNodeLoss.WAIT.value,
    show_default=True,
    help="If its node is unreachable: wait keeps it there with its disk; fence stops it, and it returns with its disk"
    " when the node is back; recreate stops it and starts it elsewhere with a NEW disk from its image. A node that is"
    " confirmed off loses its machines: they start elsewhere with new disks, and the old disks are retained there.",
)
@click.option("--arch", default="", help="Only on nodes of this architecture: x86_64, aarch64.")
@click.option("--accelerator", multiple=True, metavar="KIND[=N]", help="Only on nodes with N free ones of this kind.")
@click.option("--volume", multiple=True, metavar="NAME", help="Only on nodes with this volume.")
@click.option("--node-label", multiple=True, metavar="NAME=VALUE", help="Only on nodes with this label.")
@_rules("--affinity", "--together", f"Place it with machines that have a label; LEVEL: {LEVELS}.")
@_rules("--anti-affinity", "--apart", "Place it apart from machines that have a label.")
@_rules("--prefer-affinity", "--prefer-together", "The same as --affinity, if possible.")
@_rules("--prefer-anti-affinity", "--prefer-apart", "The same as --anti-affinity, if possible.")
@click.option("-f", "--file", type=click.File("rb"), help="The whole request as JSON; - is standard input.")
@wait_options
@show.output_option
@project_options
@server_options
@click.pass_context
def create(ctx: click.Context, /, *, within: float | None, output: str, org: str, project: str, **given: Any) -> None:
    """Create the machine NAME.

    \b
    hostler vm create web --cpus 2 --memory 2G --label app=web --wait
    hostler vm create db --anti-affinity node:app=db --label app=db --on-node-loss fence
    hostler vm create lab --expires 30m
    """

    request = _from_file(ctx, given) if given["file"] is not None else _from_flags(given)
    complete(create_vm(chosen_server(), org, project, request, within=within, output=output))


def _from_file(ctx: click.Context, given: dict[str, Any]) -> VmCreate:
    import msgspec
    from click.core import ParameterSource

    others = [
        name
        for name in given
        if name not in ("file", "name") and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if others:
        raise click.UsageError(f"--file holds the whole request; leave out --{others[0].replace('_', '-')}")
    data = given["file"].read()
    if given["name"] is not None:
        try:
            plain = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"{given['file'].name}: not JSON: {error}") from None
        if isinstance(plain, dict):
            data = msgspec.json.encode(plain | {"name": given["name"]})
    try:
        return VmCreate.decode(data, strict=True)
    except Invalid as error:
        raise Invalid(f"{given['file'].name}: {error}") from None


def _from_flags(given: dict[str, Any]) -> VmCreate:
    if given["name"] is None:
        raise click.UsageError("give the machine a NAME, or a --file")
    affinity = [
        *(_affinity(text, together=True, required=True) for text in given["affinity"]),
        *(_affinity(text, together=False, required=True) for text in given["anti_affinity"]),
        *(_affinity(text, together=True, required=False) for text in given["prefer_affinity"]),
        *(_affinity(text, together=False, required=False) for text in given["prefer_anti_affinity"]),
    ]
    request = VmCreate(
        name=given["name"],
        spec=VmSpec(
            cpus=given["cpus"],
            memory_mib=given["memory"],
            disk_gib=given["disk"],
            image=given["image"],
            user=given["user"],
            user_data=text_of(given["user_data"]) if given["user_data"] is not None else "",
            network_config=text_of(given["network_config"]) if given["network_config"] is not None else "",
            ssh_keys=(*ssh_keys(given["ssh_key"]), *(() if given["bare"] else own_keys())),
            cpu_share=given["cpu_share"],
            arch=architecture(given["arch"]),
            accelerators=accelerators(given["accelerator"]),
            volumes=given["volume"],
        ),
        power=Power.OFF if given["off"] else Power.ON,
        labels=labels(given["label"]),
        on_node_loss=OnNodeLoss(given["on_node_loss"]),
        affinity=tuple(affinity),
        node_labels=labels(given["node_label"], "--node-label"),
        expires_in=given["expires"],
    )
    request.encode()  # validate before anything is sent
    return request


def _affinity(text: str, *, together: bool, required: bool) -> Affinity:
    level, colon, rest = text.partition(":")
    if not colon or level not in {each.value for each in Level}:
        raise click.BadParameter(f"{text!r}: write {_PLACE}, where LEVEL is one of {LEVELS}")
    return Affinity(together=together, level=Level(level), labels=labels(rest.split(","), "LEVEL:"), required=required)


def text_of(path: Path) -> str:
    """Return the content of a text file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise Invalid(f"{path}: cannot be read: {reason}; name another file") from None


def ssh_keys(given: Sequence[str]) -> tuple[str, ...]:
    """Return public keys: given literally, or the lines of FILE or @FILE. Invalid: unreadable, or a private key."""
    found: list[str] = []
    for key in given:
        lines = [key]
        if key.startswith("@") or " " not in key.strip():
            lines = text_of(Path(key.removeprefix("@")).expanduser()).splitlines()
        if any("PRIVATE KEY" in line for line in lines):
            raise Invalid(f"--ssh-key {key}: is a private key, which must stay secret; name the .pub file next to it")
        found += [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return tuple(found)


def own_keys() -> tuple[str, ...]:
    """Return the command line's own key, or no key, with a note, if it cannot be stored."""
    from hostler.entry.ssh import own_public

    try:
        return (own_public(),)
    except Invalid as error:
        note(f"note: Hostler's own key is not added: {error}")
        return ()


async def create_vm(
    server: Server, org: str, project: str, request: VmCreate, *, within: float | None, output: str
) -> None:
    """Create a machine; if `within` is given, wait for it up to that many seconds."""
    async with open_client(server) as client:
        view = await client.vms.create(org, project, request)
        for warning in view.warnings:
            note(show.safe(f"{view.name}: {warning}"))
        await show_result(client, view, within, output, f"created, {described(view)}", available=True)


async def change_vm(
    server: Server,
    change: Callable[[Client], Awaitable[VmView]],
    within: float | None,
    output: str,
    said: str,
    *,
    available: bool = False,
) -> None:
    """Change a machine; if `within` is given, wait for it up to that many seconds."""
    async with open_client(server) as client:
        view = await change(client)
        await show_result(client, view, within, output, said, available=available)


async def show_result(
    client: Client, view: VmView, within: float | None, output: str, said: str, *, available: bool = False
) -> None:
    """Wait if `within` is given, and show the result. `available`: wait until its user can log in."""
    name = view.name
    now: VmView | None = view
    if within is not None:
        now = await until_settled(client, view, within=within, available=available)
        said = described(now) if now is not None else "gone"
    if output == "table":
        click.echo(f"{show.safe(name)}: {show.safe(said)}")
        if now is not None and now.at_next_boot:
            note(f"note: takes effect at the next boot: {', '.join(now.at_next_boot)}")
    else:
        show.emit(msgspec.to_builtins(now), output)


@click.command()
@click.argument("vm")
@click.option("--name", help="A new name.")
@click.option("--cpus", type=int, help="Cores, from the next boot on.")
@click.option("--memory", type=Mebibytes(), help="Memory, from the next boot on: 512M, 2G.")
@click.option("--disk", type=int, metavar="GIB", help="Disk size, from the next boot on. It can only grow.")
@click.option("-l", "--label", "label", multiple=True, metavar="NAME=VALUE", help="Replace all labels; repeatable.")
@click.option("--no-labels", is_flag=True, help="Remove all labels.")
@click.option("--ssh-key", "ssh_key", multiple=True, help="Replace all SSH keys: a public key, or @FILE; repeatable.")
@click.option("--expires", type=Duration(), help="Delete the machine after this time from now: 30m, 2h, 1d.")
@click.option("--never-expires", is_flag=True, help="Do not delete the machine automatically.")
@click.option("--on-node-loss", type=click.Choice([each.value for each in OnNodeLoss]), help="See vm create.")
@click.option("--if-revision", type=click.IntRange(min=1), help="Change it only if it still has this revision.")
@yes_option
@show.output_option
@project_options
@server_options
def update(*, vm: str, if_revision: int | None, yes: bool, output: str, org: str, project: str, **given: Any) -> None:
    """Change the machine VM. Options that are left out change nothing.

    CPUs, memory and disk of a running machine change at its next boot. At a terminal, --on-node-loss recreate lists the
    disk and the snapshots that are given up if the node is lost, and asks for confirmation.
    """
    request = _update(given)
    if request == VmUpdate():
        raise click.UsageError("nothing to change; hostler vm update --help lists the options")
    request.encode()

    if request.on_node_loss is OnNodeLoss.RECREATE and can_ask() and not yes:
        note(complete(_given_up(chosen_server(), org, project, vm)))
        question = f"Give that up and start {show.safe(vm)} elsewhere with a new disk if its node is lost?"
        ask_if_seen(question, yes=yes)

    async def change(client: Client) -> VmView:
        return await client.vms.update(org, project, vm, request, if_match=if_revision)

    complete(change_vm(chosen_server(), change, None, output, "changed"))


async def _given_up(server: Server, org: str, project: str, vm: str) -> str:
    from hostler.entry.cli.node import lost_with_node

    async with open_client(server) as client:
        return lost_with_node(await client.vms.get(org, project, vm))


def _update(given: dict[str, Any]) -> VmUpdate:

    if given["no_labels"] and given["label"]:
        raise click.UsageError("--label and --no-labels exclude each other")
    if given["never_expires"] and given["expires"] is not None:
        raise click.UsageError("--expires and --never-expires exclude each other")

    def unless_none(value: Any) -> Any:
        return UNSET if value is None else value

    return VmUpdate(
        name=unless_none(given["name"]),
        cpus=unless_none(given["cpus"]),
        memory_mib=unless_none(given["memory"]),
        disk_gib=unless_none(given["disk"]),
        ssh_keys=ssh_keys(given["ssh_key"]) if given["ssh_key"] else UNSET,
        labels=labels(given["label"]) if given["label"] or given["no_labels"] else UNSET,
        on_node_loss=OnNodeLoss(given["on_node_loss"]) if given["on_node_loss"] else UNSET,
        expires_in=None if given["never_expires"] else unless_none(given["expires"]),
    )


def _power(verb: str, about: str, said: str) -> click.Command:
    @click.command(verb, help=about)
    @click.argument("vm")
    @wait_options
    @show.output_option
    @project_options
    @server_options
    def command(*, vm: str, within: float | None, output: str, org: str, project: str) -> None:
        async def change(client: Client) -> VmView:
            asked: Callable[..., Awaitable[VmView]] = getattr(client.vms, verb)
            return await asked(org, project, vm)

        complete(change_vm(chosen_server(), change, within, output, said, available=verb in ("start", "reset")))

    return command


start = _power("start", "Switch the machine VM on.", "will be started")
stop = _power("stop", "Shut the machine VM down. If it does not react in time, it is switched off.", "will be stopped")
reset = _power("reset", "Reset the machine VM, like its reset button.", "will be reset")


@click.command()
@click.argument("vm", nargs=-1, required=True)
@yes_option
@wait_options
@project_options
@server_options
def delete(*, vm: tuple[str, ...], yes: bool, within: float | None, org: str, project: str) -> None:
    """Delete the machines VM, with their disks and snapshots. Asks for confirmation at a terminal."""
    ask_if_seen(f"Delete {', '.join(show.safe(each) for each in vm)} permanently?", yes=yes)
    complete(_delete(chosen_server(), org, project, vm, within))


async def _delete(server: Server, org: str, project: str, vms: tuple[str, ...], within: float | None) -> None:
    async with open_client(server) as client:
        for vm in vms:
            view = await client.vms.delete(org, project, vm)
            if within is None:
                click.echo(f"{show.safe(vm)}: will be deleted")
                continue
            await until_settled(client, view, within=within, gone=True)
            click.echo(f"{show.safe(vm)}: deleted")
