"""`hostler web`: a browser is opened, and is signed in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from api_server import Api, serving
from up_process import hostler, well

from hostler.model.access import Role


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving(sockets=True) as api:
        yield api


async def signed_in(api: Api, address: str) -> tuple[int, str]:
    """What the page does with the address: status, and who it is then."""
    start, ticket = address.split("/#/sign-in/")
    assert start == api.url
    reply = await api.call("POST", "/v1/sessions/browser", token=None, json={"ticket": ticket})
    return reply.status, reply.json.get("user", {}).get("name", "")


async def test_the_address_is_printed_alone_and_signs_in_once(api: Api, tmp_path: Path) -> None:
    token = await api.user(Role.MEMBER, "acme", name="ann")
    environ = {"HOSTLER_DATA": str(tmp_path), "HOSTLER_SERVER": api.url, "HOSTLER_TOKEN": token}
    done = await well("web", "--print", **environ)
    assert "within 60 s" in done.err
    assert token not in done.out
    assert await signed_in(api, done.out.strip()) == (201, "ann")
    assert await signed_in(api, done.out.strip()) == (401, "")


async def test_a_browser_is_opened_and_where_there_is_none_the_address_is_told(api: Api, tmp_path: Path) -> None:
    token = await api.user(Role.MEMBER, "acme", name="ann")
    environ = {"HOSTLER_DATA": str(tmp_path), "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    program, seen = tmp_path / "browser", tmp_path / "seen"
    program.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}\n')
    program.chmod(0o700)
    (tmp_path / "token").write_text(token)
    options = ("--server", api.url, "--token-file", tmp_path / "token")
    done = await well("web", *options, BROWSER=str(program), **environ)
    assert done.out == f"opened {api.url}/\n", "the ticket is not left on the terminal"
    assert await signed_in(api, seen.read_text()) == (201, "ann")
    seen.unlink()
    done = await well("web", *options, BROWSER="", **environ)
    assert "no browser" in done.err
    assert not seen.exists()
    assert await signed_in(api, done.out.strip()) == (201, "ann")


async def test_a_token_that_counts_for_nothing_opens_nothing(api: Api, tmp_path: Path) -> None:
    environ = {"HOSTLER_DATA": str(tmp_path), "HOSTLER_SERVER": api.url, "HOSTLER_TOKEN": "hst_" + "x" * 43}
    done = await hostler("web", "--print", **environ)
    assert done.code != 0
    assert not done.out
    assert "token" in done.err
