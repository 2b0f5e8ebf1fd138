"""Files of ours that nobody wrote in earnest: each is refused with its name, and never a fault of Hostler's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostler.errors import Invalid
from hostler.settings import load
from hostler.settings.catalogue import load_catalogue

NINES = "9" * 5000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"[labs.{NINES}]", "must be named by its lab id"),
        (f"at_once = {NINES}", "too many digits"),
        (f"at_once = 0x{'f' * 6000}", "too large"),
        ("at_once = " + "[" * 5000, "too deep"),
        ("at_once = " + "[" * 200 + "]" * 200, "too deep"),
        (f"[{'a.' * 3000}a]", "too deep"),
        (f"[default]\nmemory = '{NINES}'", "is not a size"),
        (f"[default]\ndisk = '{NINES}'", "is not a size"),
    ],
)
def test_a_catalogue_beyond_all_bounds_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "labs.toml"
    file.write_text(text)
    with pytest.raises(Invalid, match=says) as caught:
        load_catalogue(file, life=60.0, user="u")
    assert str(caught.value).startswith(str(file))


def test_a_password_where_none_can_be_is_not_repeated() -> None:
    with pytest.raises(Invalid, match="PLASMAVMC_CHAINFIRE_ENDPOINT: must be http://host:port") as caught:
        load({}, {"PLASMAVMC_CHAINFIRE_ENDPOINT": "http://me:s3cret@h:1"}, toml="")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"nodes = {NINES}", "hostler.toml: a number in it has too many digits"),
        (f"nodes = 0x{'f' * 6000}", "too large"),
        ("nodes = " + "[" * 5000, "too deep"),
        (f"[labels.{'a.' * 3000}a]", "too deep"),
        (f"nodes = '{NINES}'", "must be a whole number from"),
        (f"listen = 'h:{NINES}'", "must be HOST:PORT"),
    ],
)
def test_settings_beyond_all_bounds_are_refused(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        load({}, {}, toml=text)
