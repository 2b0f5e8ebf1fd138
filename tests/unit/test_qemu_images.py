"""The folder of images: by content, whole or not there, and not taken from under a machine."""

from __future__ import annotations

import asyncio
import bz2
import fcntl
import gzip
import hashlib
import json
import lzma
import os
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.drivers.machines.qemu.images import formats, layout, transfer
from hostler.drivers.machines.qemu.images.add import check_sha256, parse_request, recognise
from hostler.drivers.machines.qemu.images.folder import ImageFolder, digest_of
from hostler.errors import Damaged, HostlerError, Invalid, NotFound, Refused, TooLarge, Unavailable
from hostler.ports.machine_driver import Named

FIELDS = {
    "disk_format": "raw",
    "disk_bytes": 512,
    "user": "ada",
    "seeding": "firmware",
    "probe": "ssh",
    "source": "a test",
}


@pytest.fixture
def images(tmp_path: Path) -> ImageFolder:
    return ImageFolder(tmp_path / "images", machines=tmp_path / "machines")


async def made(images: ImageFolder, name: str, disk: bytes = b"disk", **fields: object) -> Named:
    async with images.scratch() as scratch:
        (scratch.path / "disk").write_bytes(disk)
        (scratch.path / "kernel").write_bytes(b"kernel")
        (scratch.path / "rest of the build").mkdir()
        return await images.register(name, scratch, FIELDS | fields)


def machine(images: ImageFolder, name: str, state: dict[str, object] | None = None) -> Path:
    folder = images.path.parent / "machines" / "node-1" / "vms" / name
    folder.mkdir(parents=True)
    (folder / "machine.json").write_text(json.dumps(state or {"label": {"vm": name}}))
    return folder


def contents(images: ImageFolder) -> set[str]:
    return {entry.name for entry in images.path.iterdir()} - {"lock", "names", "parts", "scratch"}


# By content


async def test_what_was_registered_is_found_with_files_that_nobody_can_change(images: ImageFolder) -> None:
    named = await made(images, "one")
    image, files = images.find("one")
    assert named.image == image
    assert files == images.files("one") == images.path / image.digest
    assert {entry.name for entry in files.iterdir()} == {"image.json", "disk", "kernel"}
    assert all(entry.stat().st_mode & 0o777 == 0o444 for entry in files.iterdir())
    assert image.files["disk"] == hashlib.sha256(b"disk").hexdigest()
    assert image.digest == digest_of(image)


async def test_what_is_made_is_for_its_owner_only(tmp_path: Path) -> None:
    images = ImageFolder(tmp_path / "data" / "images")
    await made(images, "one")
    folders = [tmp_path / "data", images.path, *(entry for entry in images.path.iterdir() if entry.is_dir())]
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}


async def test_the_same_content_is_one_image_however_often_and_whenever_it_is_made(images: ImageFolder) -> None:
    first = await made(images, "one")
    again = await made(images, "two", source="somewhere else")
    assert again.image == first.image
    assert contents(images) == {first.image.digest}
    assert [named.name for named in await images.list()] == ["one", "two"]


async def test_what_is_said_of_an_image_is_part_of_it(images: ImageFolder) -> None:
    assert (await made(images, "one")).image.digest != (await made(images, "two", user="eve")).image.digest


async def test_a_name_moves_and_what_it_stood_for_goes_unless_a_machine_stands_on_it(images: ImageFolder) -> None:
    old = await made(images, "one", b"old")
    folder = machine(images, "m")
    await images.link_into("one", folder)
    new = await made(images, "one", b"new")
    assert contents(images) == {old.image.digest, new.image.digest}
    (folder / "base").unlink()
    newest = await made(images, "one", b"newest")
    assert contents(images) == {newest.image.digest}


async def test_an_empty_name_is_the_default_image(tmp_path: Path) -> None:
    images = ImageFolder(tmp_path / "images", default="usual")
    await made(images, "usual")
    assert images.find("")[0] == images.find("usual")[0]
    assert await images.link_into("", tmp_path) == images.find("usual")[0]


async def test_an_image_that_is_not_there_is_told_with_what_to_do(images: ImageFolder) -> None:
    assert await images.list() == []
    assert not images.path.exists(), "looking makes nothing"
    with pytest.raises(NotFound, match="image build tiny"):
        images.find("tiny")
    await made(images, "one")
    with pytest.raises(NotFound, match="existing: one"):
        images.find("none")
    with pytest.raises(NotFound):
        await images.remove("none")


@pytest.mark.parametrize("name", ["../x", "A", ".x", "-drive", "a b", "a\n", "x" * 64, "é", "a/b", 'a"'])
async def test_a_name_is_a_plain_word(images: ImageFolder, name: str) -> None:
    for call in (lambda: images.remove(name), lambda: made(images, name), lambda: images.link_into(name, images.path)):
        with pytest.raises(Invalid, match="a name has 1 to 63"):
            await call()


async def test_a_damaged_image_is_said_to_be(images: ImageFolder) -> None:
    named = await made(images, "one")
    (images.path / named.image.digest / "image.json").unlink()
    with pytest.raises(Damaged, match="add it again"):
        images.find("one")
    await images.remove("one")
    assert contents(images) == set()


@pytest.mark.parametrize("fault", ["torn", "gone", "folder", "another's"])
async def test_an_image_that_cannot_be_read_hides_no_other_and_is_told_of(images: ImageFolder, fault: str) -> None:
    bad, good = await made(images, "bad", b"bad"), await made(images, "good", b"good")
    path = images.path / bad.image.digest / "image.json"
    path.unlink()
    if fault == "torn":
        path.write_bytes(b'{"digest":')
    elif fault == "folder":
        path.mkdir()
    elif fault == "another's":
        path.write_bytes(good.image.encode())
    assert [named.name for named in await images.list()] == ["good"]
    (found,) = (await images.damaged()).items()
    assert found[0] == "bad"
    assert str(path) in found[1]
    assert found[1].endswith("remove the image and add it again")
    with pytest.raises(Damaged):
        images.find("bad")
    with pytest.raises(Damaged):
        await images.link_content_into(bad.image.digest, images.path)
    await images.remove("bad")
    assert await images.damaged() == {}


async def test_a_guest_that_is_kept_warm_meanwhile_makes_no_image_unused_or_unlisted(
    images: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = await made(images, "one")
    await images.link_into("one", machine(images, "m"))
    making = images.path / named.image.digest / "warm" / ".making-x"
    listed = os.scandir

    def scandir(path: str | Path) -> object:
        if Path(path) == making:
            making.rmdir()  # by whoever made it, just now
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    making.mkdir(parents=True)
    assert [each.used_by for each in await images.list()] == [1]
    assert not making.exists(), "nobody looked there"
    making.mkdir()
    with pytest.raises(Refused, match="in use by m"):
        await images.remove("one")
    assert not making.exists(), "nobody looked there"


# Machines


async def test_what_a_machine_stands_on_is_found_by_its_content_whatever_became_of_its_name(
    images: ImageFolder,
) -> None:
    old = await made(images, "one", b"old")
    first, second = machine(images, "first"), machine(images, "second")
    await images.link_into("one", first)
    await made(images, "one", b"new")
    assert await images.link_content_into(old.image.digest, second) == old.image
    assert (second / "base").samefile(first / "base")
    assert (second / "base").read_bytes() == b"old"
    (first / "base").unlink()
    images.sweep()
    assert images.holding(old.image.digest)[0] == old.image, "the second one uses it"
    for unknown in ("0" * 64, "", "names", "../images"):
        with pytest.raises(NotFound, match="is not here"):
            await images.link_content_into(unknown, second)


async def test_a_machine_gets_links_as_often_as_it_asks(images: ImageFolder, tmp_path: Path) -> None:
    await made(images, "one")
    folder = machine(images, "m")
    for _ in range(2):
        image = await images.link_into("one", folder)
    files = images.files("one")
    assert (folder / "base").samefile(files / "disk")
    assert (folder / "kernel").samefile(files / "kernel")
    assert not (folder / "initrd").exists()
    assert image == images.find("one")[0]


async def test_another_image_replaces_the_links_of_a_machine_that_is_made_anew(images: ImageFolder) -> None:
    await made(images, "one")
    await made(images, "two", b"other")
    folder = machine(images, "m")
    await images.link_into("one", folder)
    await images.link_into("two", folder)
    assert (folder / "base").read_bytes() == b"other"
    assert (images.files("one") / "disk").read_bytes() == b"disk"


async def test_an_image_in_use_is_not_removed_and_its_users_are_named(images: ImageFolder) -> None:
    await made(images, "one")
    folder = machine(images, "vm-7")
    await images.link_into("one", folder)
    assert [(named.name, named.used_by) for named in await images.list()] == [("one", 1)]
    with pytest.raises(Refused, match="in use by vm-7; delete that machine first"):
        await images.remove("one")
    assert images.find("one")
    (folder / "base").unlink()
    await images.remove("one")
    assert contents(images) == set()


async def test_a_second_name_may_go_while_a_machine_stands_on_the_image(images: ImageFolder) -> None:
    await made(images, "one")
    await made(images, "two")
    await images.link_into("one", machine(images, "m"))
    await images.remove("two")
    with pytest.raises(Refused):
        await images.remove("one")


async def test_a_machine_with_a_copy_counts_by_its_state_file(images: ImageFolder) -> None:
    named = await made(images, "one")
    machine(images, "far", {"name": "on another disk", "image": {"digest": named.image.digest}})
    with pytest.raises(Refused, match="in use by on another disk"):
        await images.remove("one")


async def test_a_link_in_a_folder_that_nobody_knows_counts_too(images: ImageFolder, tmp_path: Path) -> None:
    await made(images, "one")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    await images.link_into("one", elsewhere)
    with pytest.raises(Refused, match="1 of another data folder"):
        await images.remove("one")


async def test_where_there_can_be_no_link_there_is_a_copy(
    images: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def across(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    await made(images, "one")
    monkeypatch.setattr(Path, "hardlink_to", across)
    folder = machine(images, "m")
    (folder / ".base.copy").write_bytes(b"half of one")
    await images.link_into("one", folder)
    assert (folder / "base").read_bytes() == b"disk"
    assert not (folder / "base").samefile(images.files("one") / "disk")
    assert sorted(entry.name for entry in folder.iterdir()) == ["base", "kernel", "machine.json"]


async def test_a_state_that_is_kept_warm_is_shown_and_is_no_user(images: ImageFolder) -> None:
    await made(images, "one", warm=True)
    shape = images.files("one") / "warm" / "1x128"
    shape.mkdir(parents=True)
    (shape / "key.state").write_bytes(b"memory")
    (images.files("one") / "warm" / "2x256").mkdir()
    os.link(images.files("one") / "disk", shape / "disk")
    (named,) = await images.list()
    assert (named.warm, named.used_by) == (("1x128",), 0)
    await images.remove("one")
    assert contents(images) == set()


# Interrupted, and at once


async def test_a_scratch_folder_goes_with_its_work_and_is_left_alone_until_then(images: ImageFolder) -> None:
    async with images.scratch() as scratch:
        (scratch.path / "half").write_bytes(b"")
        await asyncio.to_thread(images.sweep)
        assert (scratch.path / "half").exists()
    assert list((images.path / "scratch").iterdir()) == []


async def test_what_a_dead_process_left_is_swept_by_the_next_call(images: ImageFolder) -> None:
    await made(images, "one")
    scratch, names = images.path / "scratch", images.path / "names"
    for leftover in ("with a lock", "without"):
        (scratch / leftover).mkdir()
        (scratch / leftover / "disk").write_bytes(b"half")
    (scratch / "with a lock.lock").touch()
    (scratch / "only a lock.lock").touch()
    (names / ".one.1234").touch()
    (images.path / ("a" * 64)).mkdir()
    await images.remove("one")
    assert list(scratch.iterdir()) == []
    assert list(names.iterdir()) == []
    assert contents(images) == set()


async def test_where_something_is_mounted_nothing_is_swept(
    images: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(images, "one")
    left = images.path / "scratch" / "left by a build"
    (left / "dev" / "shm").mkdir(parents=True)
    (left / "dev" / "shm" / "of the host").touch()
    (tmp_path / "mounts").write_text(
        f"66 27 0:40 / {str(left).replace(' ', chr(92) + '040')}/dev/shm rw - tmpfs t rw\n"
    )
    monkeypatch.setattr(layout, "MOUNTS", str(tmp_path / "mounts"))
    images.sweep()
    assert (left / "dev" / "shm" / "of the host").exists()
    (tmp_path / "mounts").write_text(f"66 27 0:40 / {images.path}/scratch/left rw - tmpfs t rw\n")
    images.sweep()
    assert not left.exists()


async def test_a_call_does_not_wait_for_ever_for_another_process(
    images: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(images, "one")
    monkeypatch.setattr(layout, "LOCK_WITHIN", 0.05)
    with (images.path / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert await images.list(), "many may look"
        with pytest.raises(Unavailable, match="held the lock"):
            await images.remove("one")
    await images.remove("one")


async def test_many_at_once_leave_what_one_after_the_other_would(images: ImageFolder) -> None:
    await asyncio.gather(*(made(images, f"n{i % 4}", b"%d" % (i % 2)) for i in range(12)))
    assert [named.name for named in await images.list()] == ["n0", "n1", "n2", "n3"]
    assert len(contents(images)) == 2


# What it is: by our own parser


def header(version: int = 3, **changed: int) -> bytes:
    """The first cluster of a sound qcow2 of 1 GiB, with fields changed."""
    fields = {
        "backing_at": 0, "backing_size": 0, "cluster_bits": 16, "size": 2**30, "crypt": 0, "l1_size": 2,
        "l1_at": 0x30000, "refcount_at": 0x10000, "refcount_clusters": 1, "snapshots": 0, "snapshots_at": 0,
        "incompatible": 0, "compatible": 0, "autoclear": 0, "refcount_order": 4, "header_length": 104,
    } | changed  # fmt: skip
    old, new = list(fields.values())[:11], list(fields.values())[11:]
    head = formats.MAGIC + struct.pack(">IQIIQIIQQIIQ", version, *old)
    return (head + struct.pack(">QQQII", *new) if version == 3 else head) + bytes(64)


def extension(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", kind, len(data)) + data + bytes(-len(data) % 8) + bytes(8)


def qcow2_file(path: Path, head: bytes) -> Path:
    path.write_bytes(head)
    os.truncate(path, 0x40000)
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_a_sound_header_tells_the_size_of_the_disk(tmp_path: Path, version: int) -> None:
    found = recognise(qcow2_file(tmp_path / "disk", header(version)), "it")
    assert (found.format, found.size) == ("qcow2", 2**30)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"backing_at": 0x200, "backing_size": 11}, "has a backing file"),
        ({"backing_at": 0x200}, "has a backing file"),
        ({"backing_size": 11}, "has a backing file"),
        ({"crypt": 1}, "encrypted"),
        ({"crypt": 2}, "encrypted"),
        ({"incompatible": 4}, "in another file"),
        ({"autoclear": 2}, "in another file"),
        ({"incompatible": 2}, "corrupt"),
        ({"incompatible": 1}, "not closed properly"),
        ({"incompatible": 1 << 40}, "not known here"),
        ({"cluster_bits": 8}, "not sound"),
        ({"cluster_bits": 64}, "not sound"),
        ({"size": 0}, "a disk of 0 bytes"),
        ({"size": 2**63}, "a disk of"),
        ({"l1_size": 1}, "not sound"),
        ({"l1_size": 2**31}, "not sound"),
        ({"l1_at": 0x30001}, "not sound"),
        ({"l1_at": 0x7FFF0000}, "ends before its tables"),
        ({"refcount_clusters": 0}, "not sound"),
        ({"refcount_order": 7}, "not sound"),
        ({"header_length": 100}, "not sound"),
        ({"snapshots": 10**6}, "not sound"),
    ],
)
def test_what_names_other_files_or_is_not_sound_is_refused_by_its_header(
    tmp_path: Path, changed: dict[str, int], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        recognise(qcow2_file(tmp_path / "disk", header(**changed)), "it")


@pytest.mark.parametrize("before", [b"", extension(0x6803F857, b"features")[:-8], extension(0xE2792ACA, b"raw")[:-8]])
@pytest.mark.parametrize(("kind", "why"), [(0x44415441, "in another file"), (0x0537BE77, "encrypted")])
def test_extensions_of_the_header_are_looked_at_too(tmp_path: Path, before: bytes, kind: int, why: str) -> None:
    head = header()[:104] + before + extension(kind, b"/etc/shadow")
    with pytest.raises(Refused, match=why):
        recognise(qcow2_file(tmp_path / "disk", head), "it")
    old = header(2)[:72] + before + extension(kind, b"/etc/shadow")
    with pytest.raises(Refused, match=why):
        recognise(qcow2_file(tmp_path / "disk", old), "it")


@given(st.binary(max_size=200), st.integers(0, 110), st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_bytes_make_the_parser_fail_in_another_way_than_by_refusing(data: bytes, at: int, is_head: bool) -> None:
    path = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")
    file = path / f"hostler-test-{os.getpid()}"
    head = header()
    file.write_bytes((head[:at] + data + head[at + len(data) :]) if is_head else data)
    try:
        assert recognise(file, "it").format in ("qcow2", "raw")
    except Refused:
        pass
    finally:
        file.unlink()


def raw(path: Path, at: int, magic: bytes, length: int = 2**20) -> Path:
    with path.open("wb") as file:
        file.truncate(length)
        file.seek(at if at >= 0 else length + at)
        file.write(magic)
    return path


@pytest.mark.parametrize(
    ("at", "magic"),
    [
        (1080, b"\x53\xef"),
        (512, b"EFI PART"),
        (446, b"\x80\0\0\0\x83\0\0\0\0\x08\0\0\0\x10\0\0" + bytes(48) + b"\x55\xaa"),
        (0, b"XFSB"),
    ],
)
def test_a_raw_disk_is_known_by_its_partitions_or_file_system(tmp_path: Path, at: int, magic: bytes) -> None:
    found = recognise(raw(tmp_path / "disk", at, magic), "it")
    assert (found.format, found.size) == ("raw", 2**20)


@pytest.mark.parametrize(
    ("at", "magic", "why"),
    [
        (0, b"KDMV", "VMDK.*qemu-img convert -f vmdk"),
        (0, b"# Disk DescriptorFile", "VMDK"),
        (64, b"\x7f\x10\xda\xbe", "VDI.*convert -f vdi"),
        (0, b"vhdxfile", "VHDX.*convert -f vhdx"),
        (-512, b"conectix", "VHD.*convert -f vpc"),
        (32769, b"CD001", "ISO"),
        (0, b"\x28\xb5\x2f\xfd", "zstd -d"),
        (0, b"hello", "not a disk image"),
        (510, b"\x55\xaa", "not a disk image"),
    ],
)
def test_what_is_no_disk_for_us_is_refused_with_what_to_do(tmp_path: Path, at: int, magic: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why):
        recognise(raw(tmp_path / "disk", at, magic), "it")


# Copied and unpacked

PACK = {"gzip": gzip.compress, "xz": lzma.compress, "bzip2": bz2.compress}
CONTENT = random.Random(1).randbytes(100) + bytes(3 * transfer.CHUNK) + random.Random(2).randbytes(100)


@pytest.mark.parametrize("kind", PACK)
async def test_what_is_compressed_is_unpacked_with_holes_for_zeros(tmp_path: Path, kind: str) -> None:
    (tmp_path / "packed").write_bytes(PACK[kind](CONTENT[:1000]) + PACK[kind](CONTENT[1000:]))
    assert transfer.compression_of(tmp_path / "packed") == kind
    told: list[int] = []
    found = await transfer.unpack_file(
        tmp_path / "packed",
        tmp_path / "disk",
        kind,
        limit=len(CONTENT),
        subject="it",
        progress=lambda *t: told.append(t[1]),
    )
    assert (tmp_path / "disk").read_bytes() == CONTENT
    assert found == hashlib.sha256(CONTENT).hexdigest()
    assert (tmp_path / "disk").stat().st_blocks * 512 < len(CONTENT)
    assert told[-1] == (tmp_path / "packed").stat().st_size


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("damage", ["cut off", "spoilt"])
async def test_what_cannot_be_unpacked_is_refused(tmp_path: Path, kind: str, damage: str) -> None:
    data = bytearray(PACK[kind](random.Random(11).randbytes(10_000)))
    data = data[:-2000] if damage == "cut off" else data[:5000] + b"\xff" * 100 + data[5100:]
    (tmp_path / "packed").write_bytes(data)
    with pytest.raises(Refused, match="cannot be unpacked"):
        await transfer.unpack_file(
            tmp_path / "packed", tmp_path / "disk", kind, limit=10**9, subject="it", progress=lambda *_: None
        )


@pytest.mark.parametrize("kind", PACK)
async def test_a_small_file_that_unpacks_to_a_large_one_is_stopped(tmp_path: Path, kind: str) -> None:
    (tmp_path / "packed").write_bytes(PACK[kind](bytes(6 * 2**20)))
    with pytest.raises(TooLarge):
        await transfer.unpack_file(
            tmp_path / "packed", tmp_path / "disk", kind, limit=2**21, subject="it", progress=lambda *_: None
        )
    assert (tmp_path / "disk").stat().st_size <= 2**21


# What people say


def test_options_are_text_and_have_the_defaults_of_a_cloud_image() -> None:
    plain = parse_request({})
    assert plain.fields() == {
        "user": "hostler", "probe": "ssh", "seeding": "cloud-init", "memory_mib": 512, "boot_seconds": 240.0,
        "append": "",
    }  # fmt: skip
    assert parse_request({"kernel": "/k"}).fields()["append"].startswith("root=/dev/vda1")
    said = parse_request(
        {"user": "ada", "probe": "none", "memory_mib": "64", "boot_seconds": "9.5", "max_bytes": "1000"}
    )
    assert (said.user, said.probe, said.memory_mib, said.boot_seconds, said.max_bytes) == ("ada", "none", 64, 9.5, 1000)


@pytest.mark.parametrize(
    "options",
    [
        {"disk_bytes": "1"},
        {"user": "a b"},
        {"user": "-root"},
        {"user": ""},
        {"probe": "ping"},
        {"memory_mib": "much"},
        {"memory_mib": "0"},
        {"boot_seconds": "nan"},
        {"boot_seconds": "-1"},
        {"append": "quiet"},
        {"initrd": "/i"},
        {"kernel": "/k", "append": "a\nb"},
        {"max_bytes": "0"},
    ],
)
def test_options_that_cannot_be_are_invalid(options: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        parse_request(options)


def test_a_checksum_may_be_written_as_people_copy_it() -> None:
    assert check_sha256(f" SHA256:{'AB' * 32}\n") == "ab" * 32
    for wrong in ("ab" * 31, "zz" * 32, "", "md5:" + "ab" * 16):
        with pytest.raises(Invalid, match="64 digits"):
            check_sha256(wrong)


async def test_what_cannot_be_added_leaves_nothing_behind(images: ImageFolder, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no disk")
    os.mkfifo(tmp_path / "pipe")
    for source, sha256 in (
        (str(tmp_path / "text"), None),
        (str(tmp_path / "text"), "0" * 64),
        (str(tmp_path / "pipe"), None),
        (str(tmp_path), None),
        (str(tmp_path / "none"), None),
        ("", None),
        ("a\0b", None),
        ("ftp://example.com/x", "0" * 64),
        ("http://", "0" * 64),
        ("https://example.com/disk.qcow2", None),
    ):
        with pytest.raises(HostlerError):
            await images.add("one", source, sha256=sha256, options={}, progress=lambda *_: None)
    assert await images.list() == []
    assert contents(images) == set()
    assert list((images.path / "scratch").iterdir()) == []


async def test_a_kind_that_cannot_be_built_is_invalid(images: ImageFolder) -> None:
    with pytest.raises(Invalid, match="known are tiny, debian"):
        await images.build("windows", "one", progress=lambda *_: None)


async def test_an_image_that_cannot_be_kept_warm_says_so(images: ImageFolder) -> None:
    await made(images, "one")
    with pytest.raises(Refused, match="does not support warming"):
        await images.warm("one", cpus=1, memory_mib=128, progress=lambda *_: None)
