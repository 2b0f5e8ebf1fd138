"""`hostler lab accounts`: run twice, it loses no password."""

from __future__ import annotations

from pathlib import Path

import pytest
from api_server import serving

from hostler.client import Client
from hostler.entry.cli.lab.accounts import PasswordList, create_accounts
from hostler.errors import Invalid, Unavailable


async def test_a_second_run_adds_accounts_and_keeps_all_passwords(tmp_path: Path) -> None:
    path = tmp_path / "passwords.txt"
    async with serving(sockets=True) as api, Client(api.url, api.admin) as client:
        with PasswordList.open(path) as known:
            assert await create_accounts(client, ["ada", "Lea Marie"], known) == (["ada", "Lea Marie"], [])
        first = path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600
        with PasswordList.open(path) as known:
            assert await create_accounts(client, ["ada", "bob", "Lea Marie"], known) == (["bob"], [])
        lines = path.read_text()
        assert lines.startswith(first)
        assert len(lines.splitlines()) == 3
        name, password = lines.splitlines()[1].rsplit(maxsplit=1)
        assert (
            await api.call("POST", "/v1/sessions", token=None, json={"name": name, "password": password})
        ).status == 201
        ada = await client.users.get("ada")
        assert (ada.memberships, ada.has_password) == (("labs/ada",), True)

        with PasswordList.open(tmp_path / "other.txt") as known:
            assert await create_accounts(client, ["ada"], known) == ([], ["ada"])
        assert not (tmp_path / "other.txt").read_text()


async def test_a_run_that_ended_in_between_goes_on_with_the_password_in_the_list(tmp_path: Path) -> None:
    path = tmp_path / "passwords.txt"
    path.write_text("ada k7mp-2hxr-wq9d")  # as if its power had failed before the account was made
    async with serving(sockets=True) as api, Client(api.url, api.admin) as client:
        with PasswordList.open(path) as known:
            assert await create_accounts(client, ["ada"], known) == (["ada"], [])
            with pytest.raises(Invalid):
                await create_accounts(client, ["b/b"], known)
            with pytest.raises(Unavailable, match="another hostler lab accounts"), PasswordList.open(path):
                pass
        assert path.read_text() == "ada k7mp-2hxr-wq9d"
        said = {"name": "ada", "password": "k7mp-2hxr-wq9d"}
        assert (await api.call("POST", "/v1/sessions", token=None, json=said)).status == 201
