"""Packages that apt finds and loads; here apt is a script over a folder of packages that the test made."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from hostler.drivers.machines.qemu.images import packages as module
from hostler.drivers.machines.qemu.images.packages import Packages, run
from hostler.errors import Refused, Unavailable

APT_CACHE = """#!/bin/sh
echo "$@" >> {log}
lists={lists}
case "$*" in *Dir::State=*) lists={own} ;; esac
for name; do [ -e $lists/$name ] && cat $lists/$name && echo; done
exit 0
"""
APT_GET = """#!/bin/sh
echo "$@" >> {log}
cut() { [ -e {away} ] && { echo 'E: no network' >&2; exit 100; }; }
case "$*" in *update*) cut; cp {archive}/lists/* {own}/; exit 0 ;; esac
for name; do
    of={archive}/${name%%=*}
    case $name in *=*) [ -e $of.deb ] && cp $of.deb "$(cat $of.name)" ;; esac
done
cut
exit 0
"""


def silent(done: int, total: int) -> None:
    pass


class Archive:
    """Packages, the machine's lists of them, and an apt that knows both."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.cache = folder / "archive", folder / "cache"
        self.machine, self.own, self.log = folder / "machine", folder / "own", folder / "log"
        self.away = folder / "away"
        tools = folder / "tools"
        for path in (self.folder / "lists", self.cache, self.machine, self.own, tools):
            path.mkdir(parents=True)
        places = {
            "log": self.log,
            "lists": self.machine,
            "own": self.own,
            "away": self.away,
            "archive": self.folder,
        }
        for name, script in (("apt-cache", APT_CACHE), ("apt-get", APT_GET)):
            text = re.sub(r"\{(log|lists|own|away|archive)\}", lambda found: str(places[found[1]]), script)
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        monkeypatch.setattr(module, "_is_debian", lambda: True)
        self.fresh(monkeypatch, True)

    def fresh(self, monkeypatch: pytest.MonkeyPatch, fresh: bool) -> None:
        """Whether the machine's lists are; ours are as they are."""
        age = module._age
        monkeypatch.setattr(
            module, "_age", lambda path: (0.0 if fresh else 1e9) if str(path).startswith("/var") else age(path)
        )

    def add(self, name: str, *, depends: str = "", version: str = "1:1.0", on_machine: bool = True) -> None:
        content = f"{name} {version}".encode() * 100
        (self.folder / f"{name}.deb").write_bytes(content)
        (self.folder / f"{name}.name").write_text(f"{name}_{version.replace(':', '%3a')}_amd64.deb")
        said = (
            f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n"
            + (f"Depends: {depends}\n" if depends else "")
            + f"Size: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\nDescription: x\n Package: y\n"
        )
        for folder in (self.folder / "lists", *((self.machine,) if on_machine else ())):
            (folder / name).write_text(said)

    def packages(self) -> Packages:
        return Packages(self.cache)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    made = Archive(tmp_path, monkeypatch)
    made.add("kernel", depends="kernel-6 (= 6.1)")
    made.add("kernel-6", depends="kmod, linux-base")
    made.add("server", depends="liba1 (>= 1) | liba0, zlib1g, adduser")
    made.add("liba1", depends="libc6:any")
    made.add("zlib1g", depends="libc6")
    made.add("libc6")
    return made


async def test_what_stands_for_another_is_resolved_and_libraries_are_found(archive: Archive) -> None:
    image, others = await archive.packages().find("kernel", ["server"])
    assert image.name == "kernel-6"
    assert [package.name for package in others] == ["liba1", "libc6", "server", "zlib1g"]
    assert others[2].file == "server_1%3a1.0_amd64.deb"
    assert "Dir::State=" not in archive.log.read_text(), "the machine's lists are good enough"


async def test_a_package_that_nobody_has_is_named(archive: Archive) -> None:
    with pytest.raises(Refused, match="package absent: not in apt's sources"):
        await archive.packages().find("kernel", ["absent"])
    (archive.machine / "libc6").unlink()
    (archive.folder / "lists" / "libc6").unlink()
    with pytest.raises(Refused, match="package libc6"):
        await archive.packages().find("kernel", ["server"])


async def test_lists_of_our_own_are_made_where_the_machine_has_none(archive: Archive) -> None:
    for path in archive.machine.iterdir():
        path.unlink()
    image, _ = await archive.packages().find("kernel", ["server"])
    assert image.name == "kernel-6"
    said = archive.log.read_text()
    assert said.count("update") == 1
    await archive.packages().find("kernel", ["server"])
    assert archive.log.read_text().count("update") == 1, "they are kept"


async def test_old_lists_are_made_anew_and_used_if_that_cannot_be(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.fresh(monkeypatch, False)
    archive.add("server", version="2.0", on_machine=False)
    archive.away.touch()
    _, others = await archive.packages().find("kernel", ["server"])
    assert {package.version for package in others if package.name == "server"} == {"1:1.0"}
    archive.away.unlink()
    _, others = await archive.packages().find("kernel", ["server"])
    assert {package.version for package in others if package.name == "server"} == {"2.0"}


async def test_without_any_list_and_network_it_is_for_later(archive: Archive) -> None:
    for path in archive.machine.iterdir():
        path.unlink()
    archive.away.touch()
    with pytest.raises(Unavailable, match="E: no network; check the network"):
        await archive.packages().find("kernel", ["server"])


async def test_elsewhere_than_on_debian_nothing_is_taken_without_its_keys(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_is_debian", lambda: False)
    monkeypatch.setattr(module, "_KEYRING", tmp_path / "keyring")
    (archive.machine / "kernel").unlink()
    with pytest.raises(Refused, match="install the package debian-archive-keyring"):
        await archive.packages().find("kernel", ["server"])
    (tmp_path / "keyring").touch()
    image, _ = await archive.packages().find("kernel", ["server"])
    assert image.name == "kernel-6"
    assert f"signed-by={tmp_path / 'keyring'}" in (archive.cache / "lists" / "sources.list").read_text()


async def test_packages_are_loaded_once_and_old_versions_go(archive: Archive) -> None:
    packages = archive.packages()
    image, others = await packages.find("kernel", ["server"])
    old = archive.cache / "server_0.9_amd64.deb"
    old.touch()
    other = archive.cache / "unrelated_1_amd64.deb"
    other.touch()
    heard: list[tuple[int, int]] = []
    await packages.fetch([image, *others], lambda done, total: heard.append((done, total)))
    total = sum(package.size for package in (image, *others))
    assert heard[0] == (0, total)
    assert heard[-1] == (total, total)
    assert all((archive.cache / package.file).stat().st_size == package.size for package in others)
    assert not old.exists()
    assert other.exists()
    calls = archive.log.read_text().count("download")
    await packages.fetch([image, *others], silent)
    assert archive.log.read_text().count("download") == calls == 1


async def test_what_is_not_what_the_lists_promise_is_not_used(archive: Archive) -> None:
    packages = archive.packages()
    image, others = await packages.find("kernel", ["server"])
    content = (archive.folder / "server.deb").read_bytes()
    (archive.folder / "server.deb").write_bytes(b"X" + content[1:])
    with pytest.raises(Unavailable, match="package server 1:1.0: the download does not match the signed lists"):
        await packages.fetch([image, *others], silent)
    assert not (archive.cache / "server_1%3a1.0_amd64.deb").exists()
    (archive.folder / "server.deb").write_bytes(content)
    await packages.fetch([image, *others], silent)
    (archive.cache / "libc6_1%3a1.0_amd64.deb").write_bytes(b"damaged since")
    await packages.fetch([image, *others], silent)
    assert (archive.cache / "libc6_1%3a1.0_amd64.deb").read_bytes() == (archive.folder / "libc6.deb").read_bytes()


async def test_no_network_is_told_and_the_lists_are_not_trusted_again(archive: Archive) -> None:
    packages = archive.packages()
    image, others = await packages.find("kernel", ["server"])
    archive.away.touch()
    (archive.folder / "server.deb").unlink()
    (archive.cache / "lists").mkdir()
    made = archive.cache / "lists" / "made"
    made.touch()
    with pytest.raises(Unavailable, match="apt-get download failed: E: no network"):
        await packages.fetch([image, *others], silent)
    assert not made.exists()


async def test_one_process_at_a_time_uses_the_folder(archive: Archive) -> None:
    order: list[str] = []

    async def use(name: str) -> None:
        async with archive.packages().locked():
            order.append(f"{name} in")
            await asyncio.sleep(0.02)
            order.append(f"{name} out")

    await asyncio.gather(use("a"), use("b"))
    assert order in (["a in", "a out", "b in", "b out"], ["b in", "b out", "a in", "a out"])


async def test_files_come_out_of_a_package_and_links_are_followed(archive: Archive, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: server\nVersion: 1:1.0\nArchitecture: amd64\nMaintainer: x <x@example.invalid>\nDescription: x\n"
    )
    (tree / "lib").mkdir()
    (tree / "lib" / "liba.so.1.2").write_bytes(b"library")
    (tree / "lib" / "liba.so.1").symlink_to("liba.so.1.2")
    (tree / "lib" / "liba.so.2").symlink_to("/etc/passwd")
    (tree / "lib" / "readme").write_bytes(b"no")
    packages = archive.packages()
    _, others = await packages.find("kernel", ["server"])
    server = next(package for package in others if package.name == "server")
    target = archive.cache / server.file
    subprocess.run(["dpkg-deb", "-Znone", "--build", tree, target], check=True, capture_output=True)
    found = await packages.files(server, re.compile(r"\.so"))
    assert found == {"/lib/liba.so.1.2": b"library", "/lib/liba.so.1": b"library"}
    target.write_bytes(target.read_bytes()[:200])
    with pytest.raises(Refused, match="package server 1:1.0: cannot be unpacked"):
        await packages.files(server, re.compile(r"\.so"))


async def test_a_tool_that_is_missing_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="qemu-img: not installed; install the package qemu-utils"):
        await run("qemu-img", "--version")
    with pytest.raises(Refused, match="apt-cache: not installed; images are built from packages of Debian"):
        await Packages(tmp_path / "cache").find("kernel", [])


async def test_a_program_does_not_outlive_who_ran_it(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    running = asyncio.ensure_future(run("sh", "-c", f"echo $$ > {marker}; exec sleep 600"))
    async with asyncio.timeout(30):
        while not (marker.exists() and marker.read_text()):
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not Path(f"/proc/{marker.read_text().strip()}").exists()
