"""`hostler image`: the images of a data folder. No server is needed, and one that runs there does not mind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hostler.entry.cli import show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.confirm import ask_if_seen, yes_option
from hostler.entry.cli.failure import note
from hostler.entry.cli.progress import Ticker
from hostler.entry.cli.store_option import complete
from hostler.entry.cli.value import Duration, Mebibytes, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hostler.ports.images import Images, Named, Progress

_HERE = "hostler.entry.cli.image"

COMMANDS = {
    "list": (_HERE, "list_", "Show the images."),
    "add": (_HERE, "add", "Take a disk image from a file or a URL."),
    "build": (_HERE, "build", "Make an image from Debian's packages."),
    "remove": (_HERE, "remove", "Forget an image that no machine stands on."),
    "warm": (_HERE, "warm", "Keep an image booted, so that machines start faster."),
}

data_option = click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), help="The data folder, as with hostler up --data."
)


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def image() -> None:
    """Show, add, build and remove the images that machines are made of (docs/images.md)."""


class Shelf(NamedTuple):
    """The images of a data folder, and which of them a machine gets that names none."""

    images: Images
    default: str


def opened(data: Path | None) -> Shelf:
    """The images of the folder that was given, or of the one that the settings name."""
    from hostler.entry.data_dir import DataFolder
    from hostler.settings import load
    from hostler.wiring import open_images

    settings = load({"data": data})
    folder = DataFolder(settings.data)
    images = open_images(folder.path / "images", default=settings.image, settings=settings)
    return Shelf(images, settings.image)


@click.command("list")
@data_option
@show.output_option
def list_(data: Path | None, output: str) -> None:
    """Show the images: their sizes, how many machines stand on them, and in which shapes they are kept booted.

    The one with a star is what a machine is made of that names no image.
    """
    shelf = opened(data)
    found, damaged = complete(_all(shelf.images))
    for name, why in damaged.items():
        note(f"{name!r} is damaged: {why}")
    if output != "table":
        show.emit([plain(named, shelf.default) for named in found], output)
        return
    if not found and not damaged:
        click.echo("no images; make one: hostler image build tiny")
        return
    table = show.Columns("NAME", "DIGEST", "SIZE", "DISK", "MACHINES", "WARM", "USER", "SOURCE")
    table.rows([_row(named, shelf.default) for named in found])
    if shelf.default not in [named.name for named in found]:
        note(f"there is no {shelf.default!r}, which machines get that name no image; make it or set another (image)")


async def _all(images: Images) -> tuple[Sequence[Named], Mapping[str, str]]:
    return await images.list(), await images.damaged()


@click.command()
@click.argument("name")
@click.argument("source", metavar="PATH|URL")
@click.option("--sha256", metavar="HEX", help="Its checksum; needed for a URL, checked for a file if given.")
@click.option("--user", metavar="NAME", help="Who logs in; hostler.")
@click.option("--probe", type=click.Choice(["ssh", "tcp", "agent", "none"]), help="How it is seen to be up; ssh.")
@click.option("--seeding", type=click.Choice(["cloud-init", "firmware", "none"]), help="How it learns who it is.")
@click.option("--memory", type=Mebibytes(), help="The least memory that it boots with; 512M.")
@click.option("--boot-seconds", type=Duration(), help="How long each step of its start may take; 240s.")
@click.option("--kernel", type=click.Path(path_type=Path), help="Start this kernel, not what the disk has.")
@click.option("--initrd", type=click.Path(path_type=Path), help="The kernel's initial file system.")
@click.option("--append", metavar="TEXT", help="The kernel's arguments; root=/dev/vda1 rw console=ttyS0.")
@click.option("--max-size", type=Mebibytes(), help="Refuse what is larger, also when unpacked; 64G.")
@data_option
@show.output_option
def add(name: str, source: str, data: Path | None, output: str, **said: Any) -> None:
    """Take the disk image at PATH|URL under NAME. What is not said about it fits a cloud image.

    Taken are qcow2, and raw images with a partition table or a file system, also if compressed by gzip, xz or bzip2. An
    image that stands on other files is refused. An interrupted download goes on with the same command. If NAME stood
    for another image, new machines get the new one, and those that there are keep theirs.
    """
    sha256, max_size = said.pop("sha256"), said.pop("max_size")
    options = _options(said)
    if max_size is not None:
        options["max_bytes"] = str(max_size * 2**20)
    place = source if "://" in source else str(Path(source).expanduser().absolute())
    shelf = opened(data)
    _tell(
        _worked(lambda tell: shelf.images.add(name, place, sha256=sha256, options=options, progress=tell)),
        shelf.default,
        output,
    )


def _options(said: dict[str, Any]) -> dict[str, str]:
    names = {"memory": "memory_mib"}
    given = {names.get(name, name): value for name, value in said.items() if value is not None}
    paths = {name: str(value.expanduser().absolute()) for name, value in given.items() if isinstance(value, Path)}
    return {name: str(value) for name, value in given.items()} | paths


@click.command()
@click.argument("kind", type=click.Choice(["tiny", "debian"]))
@click.option("--name", help="What to call it; as its kind unless told otherwise.")
@data_option
@show.output_option
def build(kind: str, name: str | None, data: Path | None, output: str) -> None:
    """Make an image from Debian's packages.

    tiny: a kernel, busybox and an SSH server, in seconds and without root. debian: systemd, cloud-init and OpenSSH, in
    a minute or two; it needs mmdebstrap. If there are no newer packages, the image stays the one that it is.
    """
    shelf = opened(data)
    _tell(
        _worked(lambda tell: shelf.images.build(kind, name or kind, progress=tell)),
        shelf.default,
        output,
    )


@click.command()
@click.argument("name")
@yes_option
@data_option
def remove(name: str, yes: bool, data: Path | None) -> None:
    """Forget NAME, and its content unless it has other names. Refused while machines stand on it.

    On a terminal it asks first.
    """
    ask_if_seen(f"Remove the image {show.safe(name)}?", yes=yes)
    complete(_remove(opened(data).images, name))
    click.echo(f"{name}: removed")


async def _remove(images: Images, name: str) -> None:
    await images.remove(name)


@click.command()
@click.argument("name", default="")
@click.option("--cpus", type=click.IntRange(1, 255), default=1, show_default=True, help="Of the machines to come.")
@click.option("--memory", type=Mebibytes(), help="Of the machines to come; the least that the image boots with.")
@data_option
@show.output_option
def warm(name: str, cpus: int, memory: int | None, data: Path | None, output: str) -> None:
    """Keep NAME (the default image if not given) booted for machines of one shape.

    A machine of just that shape then starts from there, as itself, in a fraction of the time.
    """
    shelf = opened(data)
    named = name or shelf.default

    async def work(tell: Progress) -> Named:
        least = next((one.image.memory_mib for one in await shelf.images.list() if one.name == named), 128)
        return await shelf.images.warm(named, cpus=cpus, memory_mib=memory or least, progress=tell)

    _tell(_worked(work), shelf.default, output)


def _worked(work: Callable[[Progress], Any]) -> Named:
    """Do it, and show how far it is."""
    with Ticker() as ticker:

        def tell(what: str, done: int, of: int | None) -> None:
            ticker.tell(progress_line(what, done, of))

        async def run() -> Named:
            named: Named = await work(tell)
            return named

        return complete(run())


def progress_line(what: str, done: int, of: int | None) -> str:
    """How far it is, in a line."""
    if not of:
        return f"{what} …" if not done else f"{what}: {done / 1e6:,.1f} MB"
    return f"{what}: {done / 1e6:,.1f} of {of / 1e6:,.1f} MB ({100 * done // of} %)"


def _tell(named: Named, default: str, output: str) -> None:
    if output != "table":
        show.emit(plain(named, default), output)
        return
    image = named.image
    rows = [
        ("NAME", named.name + ("  (the default)" if named.name == default else "")),
        ("DIGEST", image.digest),
        ("SIZE", megabytes(named.size)),
        ("DISK", _disk(image.disk_bytes)),
        ("USER", image.user),
        ("MEMORY", f"at least {size(image.memory_mib)}"),
        ("PROBE", image.probe.value),
        ("WARM", ", ".join(named.warm) or ("not yet" if image.warm else "no")),
        ("SOURCE", show.safe(image.source)),
    ]
    show.pairs(rows)


def _row(named: Named, default: str) -> tuple[str, ...]:
    image = named.image
    return (
        named.name + ("*" if named.name == default else ""),
        image.digest[:12],
        megabytes(named.size),
        _disk(image.disk_bytes),
        str(named.used_by),
        ",".join(named.warm) or "-",
        image.user,
        show.safe(image.source),
    )


def plain(named: Named, default: str) -> dict[str, Any]:
    """An image as plain data."""
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(named)
    return data | {"default": named.name == default}


def megabytes(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e6:,.0f} MB" if count < 10e9 else f"{count / 1e9:,.1f} GB"


def _disk(count: int) -> str:
    return f"{count / 2**30:g} GiB" if count % 2**28 == 0 else f"{count / 2**20:,.1f} MiB"
