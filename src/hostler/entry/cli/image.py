"""`hostler image`: the images of a data folder. Works without a server, and also while a server runs on that folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hostler.entry.cli import show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.failure import note
from hostler.entry.cli.options import complete
from hostler.entry.cli.progress import Ticker, ask_if_seen, yes_option
from hostler.entry.cli.show import Duration, Mebibytes, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hostler.ports.machine_driver import Images, Named, Progress

_HERE = __name__

COMMANDS = {
    "list": (_HERE, "list_", "List the images."),
    "add": (_HERE, "add", "Add a disk image from a file or a URL."),
    "build": (_HERE, "build", "Build an image from Debian packages."),
    "remove": (_HERE, "remove", "Remove an image that no machine uses."),
    "warm": (_HERE, "warm", "Keep an image booted, so that machines start faster."),
}

data_option = click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), help="The data folder, as for hostler up."
)


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def image() -> None:
    """List, add, build and remove the images that machines are created from (docs/images.md)."""


class ImageListing(NamedTuple):
    """The images of a data folder, and the name of the default image."""

    images: Images
    default: str


def open_listing(data: Path | None) -> ImageListing:
    """Open the images of the given folder, or of the folder that the settings name."""
    from hostler.entry.data_dir import DataFolder
    from hostler.settings import load
    from hostler.wiring import open_images

    settings = load({"data": data})
    folder = DataFolder(settings.data)
    images = open_images(folder.path / "images", default=settings.image, settings=settings)
    return ImageListing(images, settings.image)


@click.command("list")
@data_option
@show.output_option
def list_(data: Path | None, output: str) -> None:
    """List the images: their sizes, how many machines use them, and the machine sizes they are kept booted for.

    A star marks the default image, which a machine gets if it names none.
    """
    shelf = open_listing(data)
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
        note(f"default image {shelf.default!r}: not found; build or add it, or change the setting `image`")


async def _all(images: Images) -> tuple[Sequence[Named], Mapping[str, str]]:
    return await images.list(), await images.damaged()


@click.command()
@click.argument("name")
@click.argument("source", metavar="PATH|URL")
@click.option("--sha256", metavar="HEX", help="The checksum; required for a URL, checked for a file if given.")
@click.option("--user", metavar="NAME", help="The login user.  [default: hostler]")
@click.option("--probe", type=click.Choice(["ssh", "tcp", "agent", "none"]), help="Readiness probe.  [default: ssh]")
@click.option("--seeding", type=click.Choice(["cloud-init", "firmware", "none"]), help="How the guest is configured.")
@click.option("--memory", type=Mebibytes(), help="The least memory that the image boots with.  [default: 512M]")
@click.option("--boot-seconds", type=Duration(), help="Time limit for each step of the boot.  [default: 240s]")
@click.option("--kernel", type=click.Path(path_type=Path), help="Boot this kernel instead of the one on the disk.")
@click.option("--initrd", type=click.Path(path_type=Path), help="The initial RAM disk for --kernel.")
@click.option("--append", metavar="TEXT", help="Kernel arguments.  [default: root=/dev/vda1 rw console=ttyS0]")
@click.option("--max-size", type=Mebibytes(), help="Refuse a larger image, also after unpacking.  [default: 64G]")
@data_option
@show.output_option
def add(name: str, source: str, data: Path | None, output: str, **said: Any) -> None:
    """Add the disk image at PATH|URL under NAME. The defaults fit a cloud image.

    Accepted formats: qcow2, and raw images with a partition table or a file system, also compressed by gzip, xz or
    bzip2. An image with a backing file is refused. Run the same command again to resume an interrupted download. If
    NAME already names another image, new machines use the new image and existing machines keep theirs.
    """
    sha256, max_size = said.pop("sha256"), said.pop("max_size")
    options = _options(said)
    if max_size is not None:
        options["max_bytes"] = str(max_size * 2**20)
    place = source if "://" in source else str(Path(source).expanduser().absolute())
    shelf = open_listing(data)
    _tell(
        _run_with_progress(lambda tell: shelf.images.add(name, place, sha256=sha256, options=options, progress=tell)),
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
@click.option("--name", help="The name of the image.  [default: its kind]")
@data_option
@show.output_option
def build(kind: str, name: str | None, data: Path | None, output: str) -> None:
    """Build an image from Debian packages.

    tiny: a kernel, busybox and an SSH server, in seconds and without root. debian: systemd, cloud-init and OpenSSH, in
    a minute or two; needs mmdebstrap. If no package is newer, the image does not change.
    """
    shelf = open_listing(data)
    _tell(
        _run_with_progress(lambda tell: shelf.images.build(kind, name or kind, progress=tell)),
        shelf.default,
        output,
    )


@click.command()
@click.argument("name")
@yes_option
@data_option
def remove(name: str, yes: bool, data: Path | None) -> None:
    """Remove NAME, and the image itself unless it has other names. Refused while machines use it.

    Asks for confirmation at a terminal.
    """
    ask_if_seen(f"Remove the image {show.safe(name)}?", yes=yes)
    complete(_remove(open_listing(data).images, name))
    click.echo(f"{name}: removed")


async def _remove(images: Images, name: str) -> None:
    await images.remove(name)


@click.command()
@click.argument("name", default="")
@click.option("--cpus", type=click.IntRange(1, 255), default=1, show_default=True, help="CPUs of the machines.")
@click.option("--memory", type=Mebibytes(), help="Memory of the machines.  [default: the least that the image needs]")
@data_option
@show.output_option
def warm(name: str, cpus: int, memory: int | None, data: Path | None, output: str) -> None:
    """Keep NAME (default: the default image) booted for machines of one size.

    A machine with exactly these CPUs and this memory then starts from the booted copy, with its own identity, in a
    fraction of the time.
    """
    shelf = open_listing(data)
    named = name or shelf.default

    async def work(tell: Progress) -> Named:
        least = next((one.image.memory_mib for one in await shelf.images.list() if one.name == named), 128)
        return await shelf.images.warm(named, cpus=cpus, memory_mib=memory or least, progress=tell)

    _tell(_run_with_progress(work), shelf.default, output)


def _run_with_progress(work: Callable[[Progress], Any]) -> Named:
    """Run `work` and show its progress."""
    with Ticker() as ticker:

        def tell(what: str, done: int, of: int | None) -> None:
            ticker.tell(progress_line(what, done, of))

        async def run() -> Named:
            named: Named = await work(tell)
            return named

        return complete(run())


def progress_line(what: str, done: int, of: int | None) -> str:
    """Format the progress as one line."""
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
    """Return an image as plain data."""
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(named)
    return data | {"default": named.name == default}


def megabytes(count: int) -> str:
    """Format a number of bytes for people."""
    return f"{count / 1e6:,.0f} MB" if count < 10e9 else f"{count / 1e9:,.1f} GB"


def _disk(count: int) -> str:
    return f"{count / 2**30:g} GiB" if count % 2**28 == 0 else f"{count / 2**20:,.1f} MiB"
