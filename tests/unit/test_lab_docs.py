"""What docs/labs.md and docs/tour.md say of `labs.toml` is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hostler.errors import Invalid
from hostler.model.lab import LabCatalogue, LabEvent, LabTemplate
from hostler.settings.catalogue import load_catalogue

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "labs.md"


def examples(page: Path) -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def loaded(tmp_path: Path, text: str) -> LabCatalogue:
    path = tmp_path / "labs.toml"
    path.write_text(text)
    return load_catalogue(path, life=1800.0, user="student")


@pytest.mark.parametrize("text", examples(GUIDE))
def test_each_catalogue_of_the_guide_can_be_loaded(text: str, tmp_path: Path) -> None:
    catalogue = loaded(tmp_path, text)
    assert catalogue.at_once == 30
    assert catalogue.find(1) is not None


def test_the_class_of_the_guide_is_the_one_whose_image_is_kept_warm(tmp_path: Path) -> None:
    template = loaded(tmp_path, examples(GUIDE)[0]).find(1)
    assert template is not None
    assert f"hostler image warm {template.image} --cpus {template.cpus} --memory {template.memory_mib}M" in (
        GUIDE.read_text()
    )
    assert template.warm == 2


def test_the_catalogue_of_the_tour_can_be_loaded(tmp_path: Path) -> None:
    (text,) = [text for text in examples(ROOT / "docs/tour.md") if "[labs." in text]
    assert set(loaded(tmp_path, text).labs or ()) == {"5"}


def test_the_guide_has_every_name_with_a_value_that_is_taken(tmp_path: Path) -> None:
    section = GUIDE.read_text().partition("| of a lab |")[2].partition("\n\n")[0]
    names = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    (tmp_path / "init.yaml").write_text("#cloud-config\n")
    values = {
        **dict.fromkeys(("title", "image", "user"), '"x"'),
        **dict.fromkeys(("cpus", "at_once", "warm"), "1"),
        **dict.fromkeys(("life", "per_day", "grace", "warn"), '"1m"'),
        "memory": '"256M"',
        "disk": '"10G"',
        "ssh_keys": "[]",
        "cloud_init": '"init.yaml"',
        "provider": '"qemu"',
        "end_with_terminal": "true",
    }
    assert names == set(values)
    assert len(names) == len(set(LabTemplate.__struct_fields__) - {"unknown"})
    assert loaded(tmp_path, "[labs.1]\n" + "\n".join(f"{name} = {value}" for name, value in values.items())).labs
    with pytest.raises(Invalid, match="unknown name"):
        loaded(tmp_path, "[labs.1]\nanother = 1")


def test_the_guide_has_every_event() -> None:
    section = GUIDE.read_text().partition("| `event` |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z-]+)`", section)) == {event.value for event in LabEvent}
