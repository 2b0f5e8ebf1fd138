"""Who a machine is, and how it is told."""

from __future__ import annotations

import email
import email.policy
import io
import json
from typing import Any

import asyncssh
import pycdlib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.drivers.machines.seed import (
    Identity,
    cloud_config,
    firmware_files,
    hostname_of,
    network_config,
    new_host_key,
    nocloud_files,
    nocloud_iso,
    public_part,
)
from hostler.errors import Invalid

HOST_KEY = new_host_key()
KEY = 'ssh-ed25519 AAAAC3Nz joe\'s "key"'


def identity(**changes: Any) -> Identity:
    given: dict[str, Any] = {
        "instance": "vm-7",
        "hostname": "one",
        "user": "hostler",
        "host_key": HOST_KEY.private,
        "mac": "52:54:00:00:00:01",
        **changes,
    }
    return Identity(**given)


def test_a_host_key_is_one_that_ssh_takes_and_no_two_are_the_same() -> None:
    read = asyncssh.import_private_key(HOST_KEY.private)
    assert read.export_public_key().decode().split()[:2] == HOST_KEY.public.split()
    assert HOST_KEY.public.startswith("ssh-ed25519 ")
    assert public_part(HOST_KEY.private) == HOST_KEY.public
    assert new_host_key().private != HOST_KEY.private
    with pytest.raises(Invalid):
        public_part("no key")


def test_secrets_are_in_no_repr() -> None:
    who = identity(user_data="#!/bin/sh\npassword=swordfish\n")
    body = HOST_KEY.private.splitlines()[1]
    for text in (repr(who), str(who), f"{HOST_KEY}"):
        assert body not in text
        assert "swordfish" not in text
    assert repr(who.seed) not in repr(who)
    assert "hostname='one'" in repr(who)


@pytest.mark.parametrize(
    "changes",
    [
        {"hostname": "a b"},
        {"hostname": "x\ny"},
        {"hostname": "-drive"},
        {"hostname": ""},
        {"hostname": "a" * 64},
        {"user": "root; reboot"},
        {"user": "Joe"},
        {"mac": "52:54:00:00:00:01,x"},
        {"ip4": "10.0.2.15/24 dev lo"},
        {"gw6": "fe80::1\n"},
        {"dns": "10.0.2.3\nsearch evil"},
        {"instance": "../x"},
        {"ssh_keys": ("ssh-ed25519 AAAA\nssh-ed25519 BBBB",)},
        {"ssh_keys": ("ssh-ed25519 AAAA\x00",)},
        {"ssh_keys": (" ",)},
    ],
)
def test_what_could_be_read_as_something_else_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        identity(**changes)


@settings(max_examples=40)
@given(st.text(), st.text())
def test_every_name_gives_a_host_name(name: str, otherwise: str) -> None:
    assert identity(hostname=hostname_of(name, otherwise)).hostname


def test_a_host_name_is_like_the_name() -> None:
    assert hostname_of('My "VM"\n -drive x') == "my-vm-drive-x"
    assert hostname_of("???", "vm-12") == "vm-12"
    assert hostname_of("x" * 100) == "x" * 63
    assert hostname_of("日本") == "vm"


def test_the_firmware_has_what_is_known_and_never_an_empty_file() -> None:
    files = firmware_files(identity(ip4="10.0.2.15/24", gw4="10.0.2.2", dns="10.0.2.3", ssh_keys=(KEY, "ssh-rsa B")))
    assert files["hostname"] == b"one"
    assert files["host_key"] == HOST_KEY.private.encode()
    assert files["authorized_keys"].decode().splitlines()[1:] == [KEY, "ssh-rsa B"]
    assert len(files["seed"]) == 64
    assert files.keys().isdisjoint({"ip6", "gw6", "user_data"})
    assert all(files.values())
    assert firmware_files(identity())["authorized_keys"], "keys that were taken away must be taken away there too"


def test_two_machines_never_have_the_same_random_seed() -> None:
    assert identity().seed != identity().seed


def test_the_disk_is_what_cloud_init_looks_for() -> None:
    disk = pycdlib.PyCdlib()
    disk.open_fp(io.BytesIO(nocloud_iso(identity(ip4="10.0.2.15/24"))))
    assert disk.pvd.volume_identifier.decode().strip() == "cidata"
    found = {}
    for name in ("meta-data", "user-data", "network-config"):
        content = io.BytesIO()
        disk.get_file_from_iso_fp(content, rr_path=f"/{name}")
        found[name] = content.getvalue()
    assert found == nocloud_files(identity(ip4="10.0.2.15/24"))
    assert json.loads(found["meta-data"]) == {"instance-id": "vm-7", "local-hostname": "one"}


def test_cloud_init_gets_the_host_key_the_user_and_the_keys() -> None:
    ours = nocloud_files(identity(ssh_keys=(KEY,)))["user-data"].decode()
    assert ours.startswith("#cloud-config\n")
    said = json.loads(ours.removeprefix("#cloud-config\n"))
    assert said == cloud_config(identity(ssh_keys=(KEY,)))
    assert said["ssh_keys"] == {"ed25519_private": HOST_KEY.private, "ed25519_public": HOST_KEY.public}
    assert said["users"][0]["name"] == "hostler"
    assert said["users"][0]["ssh_authorized_keys"] == [KEY]


def parts_of(data: bytes) -> list[tuple[str, bytes, str | None]]:
    """As cloud-init walks them."""
    assert b"mime-version:" in data[:4096].lower()
    whole = email.message_from_bytes(data)
    return [
        (part.get_content_type(), bytes(part.get_payload(decode=True) or b""), part.get("X-Merge-Type"))
        for part in whole.walk()
        if not part.is_multipart()
    ]


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/sh\r\necho 'kept as it is'\r\n",
        "#cloud-config\nusers:\n - name: zoë\n",
        "#include\nhttp://example.invalid/x\n",
        "--===============\n--not a boundary--\n",
        "\n\n.\nFrom nobody\n",
    ],
)
def test_the_users_own_data_comes_whole_and_after_ours(text: str) -> None:
    first, second = parts_of(nocloud_files(identity(user_data=text))["user-data"])
    assert first[0] == "text/cloud-config"
    assert json.loads(first[1].removeprefix(b"#cloud-config\n"))["hostname"] == "one"
    assert second[0] == "text/plain", "cloud-init looks for itself what it is"
    assert second[1].decode() == text
    assert second[2] == "list(append)+dict(no_replace,recurse_list)+str()"


def test_parts_that_the_user_made_stay_parts() -> None:
    theirs = (
        'Content-Type: multipart/mixed; boundary="b"\nMIME-Version: 1.0\n\n--b\nContent-Type: text/x-shellscript\n\n'
        "#!/bin/sh\necho a\n--b\nContent-Type: text/cloud-config\n\n#cloud-config\npackages: [b]\n--b--\n"
    )
    kinds = [part[0] for part in parts_of(nocloud_files(identity(user_data=theirs))["user-data"])]
    assert kinds == ["text/cloud-config", "text/x-shellscript", "text/cloud-config"]


def test_the_network_is_found_by_its_address_and_told_what_is_known() -> None:
    said = network_config(identity(ip4="10.0.2.15/24", gw4="10.0.2.2", ip6="fd00::2/64", gw6="fe80::1", dns="10.0.2.3"))
    assert said["ethernets"]["primary"] == {
        "match": {"macaddress": "52:54:00:00:00:01"},
        "dhcp4": False,
        "addresses": ["10.0.2.15/24", "fd00::2/64"],
        "routes": [{"to": "0.0.0.0/0", "via": "10.0.2.2"}, {"to": "::/0", "via": "fe80::1"}],
        "nameservers": {"addresses": ["10.0.2.3"]},
    }
    assert network_config(identity())["ethernets"]["primary"]["dhcp4"] is True
    own = "version: 1\nconfig: disabled\n"
    assert nocloud_files(identity(network_config=own))["network-config"].decode() == own
