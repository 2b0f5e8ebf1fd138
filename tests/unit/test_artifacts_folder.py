"""A repository in a folder: whole or not at all, and never another file under a name that is taken."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from hostler.drivers.artifacts import folder
from hostler.drivers.artifacts.folder import FolderArtifacts
from hostler.errors import Conflict, Damaged, Invalid, NotFound, Refused, Unavailable
from hostler.ports.slices import ArtifactInfo

ONE = "org.example:greeting:1.0.0"


def described(source: Path, artifact: str = ONE, **changes: object) -> ArtifactInfo:
    data = source.read_bytes()
    values = {
        "artifact": artifact,
        "file": "greeting.py",
        "sha256": hashlib.sha256(data).hexdigest(),
        "size": len(data),
        "module": "greeting",
        **changes,
    }
    return ArtifactInfo(**values)  # type: ignore[arg-type]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.py"
    path.write_bytes(b"print('hello')\n" * 100)
    return path


@pytest.fixture
def there(tmp_path: Path) -> FolderArtifacts:
    return FolderArtifacts(tmp_path / "artifacts")


def names(path: Path) -> list[str]:
    return sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file() and one.name != ".lock")


async def test_what_is_published_is_found_listed_and_fetched(
    there: FolderArtifacts, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match="hostler slice push"):
        await there.find(ONE)
    assert await there.list() == ()
    published = await there.publish(described(source, requires=("attrs>=20",)), source)
    assert published.published_at > 0
    assert await there.find(ONE) == published
    fetched = await there.fetch(ONE, tmp_path / "to" / "here")
    assert fetched == published
    assert (tmp_path / "to" / "here" / "greeting.py").read_bytes() == source.read_bytes()
    assert names(tmp_path / "to") == ["here/greeting.py"]
    place = "org.example/greeting/1.0.0/"
    assert names(there.root) == ["index.json", place + "artifact.json", place + "greeting.py"]
    assert [one["artifact"] for one in json.loads((there.root / "index.json").read_text())] == [ONE]


async def test_versions_are_listed_in_their_order(there: FolderArtifacts, source: Path) -> None:
    for version in ("1.10.0", "1.9.0", "2.0.0", "1.9.0-rc1"):
        await there.publish(described(source, f"org.example:greeting:{version}"), source)
    await there.publish(described(source, "org.example:greeter:7"), source)
    assert [one.artifact.rpartition(":")[2] for one in await there.list("org.example:greeting")] == [
        "1.9.0",
        "1.9.0-rc1",
        "1.10.0",
        "2.0.0",
    ]
    assert next(iter(await there.list())).artifact == "org.example:greeter:7"
    assert await there.list("org.example:greet") == ()


async def test_the_same_again_is_fine_and_another_file_is_a_conflict(there: FolderArtifacts, source: Path) -> None:
    first = await there.publish(described(source), source)
    assert await there.publish(described(source, published_at=99.0), source) == first
    before = source.read_bytes()
    source.write_bytes(b"other = 1\n")
    with pytest.raises(Conflict, match="another version"):
        await there.publish(described(source), source)
    assert (there.root / "org.example/greeting/1.0.0/greeting.py").read_bytes() == before
    assert not [name for name in os.listdir(there.root) if name.startswith(".draft")]


async def test_what_was_said_of_it_can_be_mended_and_is_no_way_to_another_file(
    there: FolderArtifacts, source: Path, tmp_path: Path
) -> None:
    await there.publish(described(source), source)
    place = there.root / "org.example/greeting/1.0.0"
    said, index = place / "artifact.json", there.root / "index.json"
    other = tmp_path / "other.py"
    other.write_bytes(b"other = 1\n")
    for spoil in (lambda: said.write_bytes(said.read_bytes()[:40]), said.unlink):
        for file in (place / "greeting.py", index, None):
            spoil()
            if file is not None:
                file.write_bytes(b"spoiled")
            with pytest.raises((Damaged, NotFound)):
                await there.find(ONE)
            with pytest.raises(Conflict, match="lost"):
                await there.publish(described(other), other)
            mended = await there.publish(described(source), source)
            assert await there.find(ONE) == mended
            assert (await there.fetch(ONE, tmp_path / "to")).sha256 == described(source).sha256
            assert [one["artifact"] for one in json.loads(index.read_text())] == [ONE]
    said.unlink()
    index.unlink()
    (place / "greeting.py").write_bytes(b"spoiled")
    with pytest.raises(Conflict, match="remove that folder"):  # nobody knows any more what it was
        await there.publish(described(source), source)
    (place / "greeting.py").unlink()
    assert await there.publish(described(source), source) == await there.find(ONE)


async def test_of_many_publishers_one_wins_and_all_of_it_is_theirs(there: FolderArtifacts, tmp_path: Path) -> None:
    sources = []
    for number in range(8):
        path = tmp_path / f"{number}.py"
        path.write_bytes(b"x = %d\n" % (number // 2) * 1000)
        sources.append(path)
    done = await asyncio.gather(
        *(FolderArtifacts(there.root).publish(described(path), path) for path in sources), return_exceptions=True
    )
    won = [one for one in done if isinstance(one, ArtifactInfo)]
    assert len(won) == 2
    assert all(isinstance(one, Conflict) for one in done if not isinstance(one, ArtifactInfo))
    fetched = await there.fetch(ONE, tmp_path / "to")
    assert {one.sha256 for one in won} == {fetched.sha256}


async def test_a_publisher_that_finishes_while_another_one_begins_is_no_trouble_for_it(
    there: FolderArtifacts, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.root.mkdir(exist_ok=True)
    (there.root / f"{folder._DRAFT}0").mkdir()
    is_dir = Path.is_dir

    def removed_meanwhile(path: Path) -> bool:
        answer = is_dir(path)
        if path.name.startswith(folder._DRAFT) and answer:
            path.rmdir()
        return answer

    monkeypatch.setattr(Path, "is_dir", removed_meanwhile)
    assert (await there.publish(described(source), source)).artifact == ONE


async def test_a_file_that_is_not_the_one_described_is_not_published(there: FolderArtifacts, source: Path) -> None:
    for wrong in (
        {"sha256": "0" * 64},
        {"size": 1},
        {"size": 99_999},
        {"file": "../greeting.py"},
        {"file": "a/b.py"},
        {"file": ".py"},
        {"file": "artifact.json"},
        {"module": "a b"},
        {"module": ""},
        {"artifact": "org.example:greeting"},
        {"artifact": "..:..:1"},
        {"artifact": "index.json:greeting:1"},
        {"artifact": "a/b:c:1"},
    ):
        with pytest.raises(Invalid):
            await there.publish(described(source, **wrong), source)  # type: ignore[arg-type]
    assert await there.list() == ()
    with pytest.raises(Invalid, match="cannot be read"):
        await there.publish(described(source), source.with_name("nothing.py"))


@pytest.mark.parametrize("artifact", ["..:..:..", "a:b:../../c", "/etc:passwd:1", ".a:b:1", "a:b", "a:b:1\n"])
async def test_no_name_leads_out_of_the_folder(there: FolderArtifacts, artifact: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        await there.find(artifact)
    with pytest.raises(Invalid):
        await there.fetch(artifact, tmp_path / "to")


async def test_a_spoiled_file_is_refused_and_healed_by_publishing_it_again(
    there: FolderArtifacts, source: Path, tmp_path: Path
) -> None:
    await there.publish(described(source), source)
    kept = there.root / "org.example/greeting/1.0.0/greeting.py"
    for spoiled in (b"", kept.read_bytes()[:-1], kept.read_bytes() + b"x", kept.read_bytes()[:-1] + b"x"):
        kept.write_bytes(spoiled)
        with pytest.raises(Refused, match=ONE):
            await there.fetch(ONE, tmp_path / "to")
        assert names(tmp_path / "to") == []
        await there.publish(described(source), source)
        await there.fetch(ONE, tmp_path / "to")
        (tmp_path / "to/greeting.py").unlink()
    kept.unlink()
    kept.symlink_to("/etc/passwd")
    with pytest.raises(Refused):
        await there.fetch(ONE, tmp_path / "to")


async def test_a_spoiled_description_is_told_of_and_hides_no_other(there: FolderArtifacts, source: Path) -> None:
    await there.publish(described(source), source)
    two = "org.example:greeting:2"
    await there.publish(described(source, two), source)
    kept = there.root / "org.example/greeting/1.0.0/artifact.json"
    for spoiled in (b"", b"{}", b"\xff", kept.read_bytes().replace(b"1.0.0", b"1.0.1"), b" " * 300_000):
        kept.write_bytes(spoiled)
        with pytest.raises(Damaged):
            await there.find(ONE)
        assert [one.artifact for one in await there.list()] == [two]


KILLED = """
import hashlib, os, signal, sys
from pathlib import Path
from hostler.drivers.artifacts import folder
from hostler.drivers.artifacts.folder import FolderArtifacts
from hostler.ports.slices import ArtifactInfo

roots, source = Path(sys.argv[1]), Path(sys.argv[2])
data = source.read_bytes()
info = ArtifactInfo(artifact="org.example:greeting:1.0.0", file="greeting.py", module="greeting", size=len(data),
    sha256=hashlib.sha256(data).hexdigest())
steps, last = 0, -1

def stepping(event, arguments):
    global steps
    if (event == "open" or event.startswith(("os.", "shutil."))) and str(roots) in str(arguments[:1]):
        steps += 1
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(stepping)
FolderArtifacts(roots / "whole")._publish(info, source)
print(all_steps := steps)
for last in range(1, all_steps + 1):
    steps = 0
    child = os.fork()
    if child == 0:
        FolderArtifacts(roots / str(last))._publish(info, source)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


async def test_whoever_is_killed_at_any_step_leaves_the_whole_or_nothing(source: Path, tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KILLED, str(tmp_path), str(source)), stdout=asyncio.subprocess.PIPE
    )
    steps, *codes = map(int, (await child.communicate())[0].split())
    assert steps > 20
    assert codes == [-signal.SIGKILL] * steps
    seen = []
    for at in range(1, steps + 1):
        there = FolderArtifacts(tmp_path / str(at))
        try:
            found = await there.fetch(ONE, tmp_path / "to")
        except NotFound:
            found = None
        seen.append(found is not None)
        assert [one.artifact for one in await there.list()] == ([ONE] if found else [])
        await there.publish(described(source), source)
        assert names(there.root) == [
            "index.json",
            "org.example/greeting/1.0.0/artifact.json",
            "org.example/greeting/1.0.0/greeting.py",
        ]
    assert seen == sorted(seen)
    assert set(seen) == {True, False}


async def test_what_the_dead_left_is_cleared_away_and_what_the_living_make_is_not(
    there: FolderArtifacts, source: Path
) -> None:
    await there.publish(described(source), source)
    (there.root / ".draft-dead").mkdir()
    (there.root / ".draft-dead.json").write_text("[")
    with there._draft() as living:
        (living / "kept").write_text("")
        await there.publish(described(source, "org.example:greeting:2"), source)
        assert (living / "kept").exists()
    assert not [name for name in os.listdir(there.root) if name.startswith(".draft")]


async def test_a_full_disk_is_told_of_where_it_is(
    there: FolderArtifacts, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await there.publish(described(source), source)
    to = tmp_path / "node" / "greeting"

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Unavailable, match="No space left on device; free some space there") as told:
        await there.fetch(ONE, to)
    assert str(told.value).startswith(f"artifacts {to}:")
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match=f"{tmp_path}/file/greeting"):
        await there.fetch(ONE, tmp_path / "file" / "greeting")
