"""The command line of a machine: nothing of a user's stands on it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from qemu_record import DIGEST, image, record

from hostler.drivers.machines.qemu.command import Boot, Wiring, command
from hostler.drivers.machines.qemu.state import SnapshotRecord
from hostler.model.vm import VmSpec
from hostler.ports.machines import Label

WIRING = Wiring(accelerator="tcg", netdev="user,id=n0", firmware=("hostname", "host_key"))


def after(argv: list[str], option: str) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv) if word == option]


@given(text=st.text(min_size=1, max_size=80))
@pytest.mark.parametrize("hostile", ["-drive", "a b", "'\"", "x\n-device", "a,b=c", "$(id)", "../../etc"])
def test_nothing_that_a_user_wrote_is_on_it(hostile: str, text: str) -> None:
    plain = command(record(), WIRING)
    for words in (hostile, text):
        spec = VmSpec(cpus=2, memory_mib=128, image=words, user_data=words, network_config=words, ssh_keys=(words,))
        named = record(
            label=Label(words, words, words, words, words),
            name=words,
            spec=spec,
            detail=words,
            resume=words,
            snapshots={words: SnapshotRecord(tag="s1", taken_at=0.0)},
        )
        assert command(named, WIRING) == plain


def test_every_layer_of_the_disk_is_named_and_the_last_one_stands_on_nothing() -> None:
    (disk,) = (json.loads(text) for text in after(command(record(), WIRING), "-blockdev"))
    assert disk["file"]["filename"] == "disk.qcow2"
    assert disk["backing"]["file"]["filename"] == "base"
    assert disk["backing"]["read-only"] is True
    assert disk["backing"]["backing"] is None
    (raw,) = (json.loads(t) for t in after(command(record(image=image(disk_format="raw")), WIRING), "-blockdev"))
    assert raw["backing"]["driver"] == "raw"
    assert "backing" not in raw["backing"]


def test_it_waits_before_the_first_instruction_and_when_the_guest_is_off() -> None:
    argv = command(record(), WIRING)
    assert {"-S", "-no-shutdown", "-nodefaults", "-no-user-config"} <= set(argv)
    assert "-no-reboot" not in argv, "a reset would be a shutdown"
    assert after(argv, "-sandbox") == ["on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]


def test_a_full_disk_stops_the_guest() -> None:
    (disk,) = [word for word in after(command(record(), WIRING), "-device") if word.startswith("virtio-blk")]
    assert "werror=stop,rerror=stop" in disk


def test_paths_are_those_of_its_own_folder() -> None:
    wiring = Wiring(accelerator="kvm", netdev="user,id=n0", firmware=("seed",), iso=True)
    for word in command(record(), wiring):
        assert "/" not in word.replace("/dev/urandom", "").replace("opt/hostler/seed", "").replace("fw/seed", ""), word


def test_an_image_without_a_kernel_boots_from_its_disk() -> None:
    argv = command(record(image=image(files={"disk": DIGEST})), WIRING, Boot(append="more"))
    assert not {"-kernel", "-initrd", "-append"} & set(argv)


def test_it_boots_or_goes_on_where_it_is_told_to() -> None:
    assert not {"-loadvm", "-incoming"} & set(command(record(), WIRING))
    assert after(command(record(), WIRING, Boot(loadvm="s3")), "-loadvm") == ["s3"]
    assert after(command(record(), WIRING, Boot(incoming="fd:9")), "-incoming") == ["fd:9"]
    argv = command(record(), WIRING, Boot(append="hostler.template"))
    assert after(argv, "-append") == ["console=ttyS0 quiet hostler.template"]
