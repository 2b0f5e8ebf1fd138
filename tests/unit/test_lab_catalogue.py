"""`labs.toml`: what it says, and how it is told what is wrong in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostler.drivers.machines.hetzner.descriptor import user_data_bytes
from hostler.drivers.machines.seed import Identity, new_host_key, nocloud_files
from hostler.errors import Invalid, NotFound
from hostler.model.lab import LabCatalogue, LabTemplate
from hostler.settings.catalogue import MAX_CLOUD_INIT, load_catalogue
from hostler.settings.value import mebibytes_of, seconds_of


def loaded(folder: Path, text: str) -> LabCatalogue:
    (folder / "labs.toml").write_text(text)
    return load_catalogue(folder / "labs.toml", life=900.0, user="pupil")


def test_a_lab_is_the_default_with_what_it_says_itself(tmp_path: Path) -> None:
    (tmp_path / "files.yaml").write_text("#cloud-config\n")
    found = loaded(
        tmp_path,
        """
        at_once = 30
        [default]
        image = "debian"
        cpus = 2
        memory = "1G"
        disk = "10G"
        grace = "2m"
        ssh_keys = ["ssh-ed25519 AAAA me"]
        provider = "qemu"
        [labs.5]
        title = "Files and rights"
        life = "1h30m"
        warn = 0
        warm = 2
        at_once = 20
        cloud_init = "files.yaml"
        [labs.6]
        user = "root"
        memory = 512
        disk = 0
        """,
    )
    default = LabTemplate(
        image="debian",
        cpus=2,
        memory_mib=1024,
        disk_gib=10,
        user="pupil",
        ssh_keys=("ssh-ed25519 AAAA me",),
        life=900.0,
        grace=120.0,
        provider="qemu",
    )
    assert found.at_once == 30
    assert found.default == default
    assert found.labs is not None
    assert set(found.labs) == {"5", "6"}
    five, six = found.find(5), found.find(6)
    assert five is not None
    assert (five.title, five.life, five.warn, five.warm, five.at_once) == ("Files and rights", 5400.0, 0.0, 2, 20)
    assert (five.user_data, five.image, five.user) == ("#cloud-config\n", "debian", "pupil")
    assert six is not None
    assert (six.user, six.memory_mib, six.disk_gib, six.life) == ("root", 512, 0, 900.0)
    assert found.find(7) is None


def test_without_tables_of_labs_every_id_is_the_default(tmp_path: Path) -> None:
    found = loaded(tmp_path, "[default]\nlife = '10m'")
    assert found.labs is None
    assert found.find(12345) == LabTemplate(life=600.0, user="pupil")
    assert loaded(tmp_path, "").default == LabTemplate(life=900.0, user="pupil")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = ", "labs.toml: not TOML"),
        ("[lab.5]", "labs.toml: lab: unknown name; did you mean labs?"),
        ("[labs.5]\nimgae = 'x'", r"\[labs.5\]: imgae: unknown name; did you mean image\?"),
        ("[default]\nopens = '10:00'", r"\[default\]: opens: unknown name; known are memory, disk, life"),
        ("[default]\nwrm = 1", r"\[default\]: wrm: unknown name; did you mean warm\?"),
        ("[labs.five]", r"\[labs.five\]: must be named by its lab id"),
        ("[labs.0]", "must be named by its lab id"),
        ("[labs.05]", "must be named by its lab id"),
        ("[labs.99999999999]", "must be named by its lab id"),
        ("labs = 5", "labs: must be a table"),
        ("[labs]\n5 = 'x'", r"\[labs.5\]: must be a table"),
        ("default = 5", "default: must be a table"),
        ("at_once = 0", "at_once = '0'"),
        ("at_once = true", "at_once = 'True'"),
        ("[labs.5]\ncpus = 'two'", r"\[labs.5\] cpus = 'two'"),
        ("[labs.5]\ncpus = 0", r"\[labs.5\] cpus = '0'"),
        ("[labs.5]\nmemory = '1 pound'", r"\[labs.5\] memory: '1 pound' is not a size; write 512M or 2G"),
        ("[labs.5]\nmemory = true", r"\[labs.5\] memory: True is not a size"),
        ("[labs.5]\ndisk = '100M'", r"\[labs.5\] disk: '100M': must be whole GiB"),
        ("[labs.5]\ndisk = -1", r"\[labs.5\] disk = '-1'"),
        ("[labs.5]\nlife = 'long'", r"\[labs.5\] life: 'long' is not a duration; write 90s"),
        ("[labs.5]\nlife = 0", r"\[labs.5\] life = '0.0'"),
        ("[labs.5]\nwarm = -1", r"\[labs.5\] warm = '-1'"),
        ("[labs.5]\nprovider = 'qmeu'", r"\[labs.5\] provider: 'qmeu' is not a machine driver; did you mean qemu\?"),
        ("[labs.5]\nprovider = 5", r"\[labs.5\] provider: 5 is not a machine driver; known are"),
        ('[labs.5]\nssh_keys = ["a\\nb"]', r"\[labs.5\] ssh_keys = .*without control characters"),
        ("[labs.5]\nuser = 'Root'", r"\[labs.5\] user = 'Root': expected str 1 to 32 of a-z"),
        ("[labs.5]\nuser = 5", r"\[labs.5\] user = '5'"),
        ("[labs.5]\ncloud_init = 5", r"\[labs.5\] cloud_init: must be the name of a file"),
        ("[labs.5]\ncloud_init = ''", r"\[labs.5\] cloud_init: must be the name of a file"),
        ("[default]\nwarm = 2", "needs a lab id"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        loaded(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "labs.toml"))


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="labs.toml: no such file"):
        load_catalogue(tmp_path / "labs.toml", life=1.0, user="u")
    with pytest.raises(NotFound, match="none.yaml: no such file"):
        loaded(tmp_path, "[labs.5]\ncloud_init = 'none.yaml'")
    (tmp_path / "big.yaml").write_text("x" * (MAX_CLOUD_INIT + 1))
    with pytest.raises(Invalid, match=r"big.yaml: more than \d+ bytes"):
        loaded(tmp_path, "[labs.5]\ncloud_init = 'big.yaml'")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="binary: is not UTF-8"):
        loaded(tmp_path, "[labs.5]\ncloud_init = 'binary'")
    with pytest.raises(Invalid, match="cannot be read: Is a directory"):
        loaded(tmp_path, "[labs.5]\ncloud_init = '.'")


def test_what_hetzner_would_not_take_is_refused_where_it_is_meant_for_it(tmp_path: Path) -> None:
    (tmp_path / "fits.yaml").write_text("x" * 20_000)
    (tmp_path / "large.yaml").write_text("x" * 24_000)
    loaded(tmp_path, "[default]\nprovider = 'hetzner'\n[labs.5]\ncloud_init = 'fits.yaml'")
    loaded(tmp_path, "[default]\nprovider = 'qemu'\n[labs.5]\ncloud_init = 'large.yaml'")
    for table in ("cloud_init = 'large.yaml'", f"cloud_init = 'fits.yaml'\nssh_keys = {['k' * 400] * 8}"):
        with pytest.raises(
            Invalid, match=r"\[labs.5\] cloud_init: with the SSH keys.*Hetzner Cloud accepts 32768; make the"
        ):
            loaded(tmp_path, f"[default]\nprovider = 'hetzner'\n[labs.5]\n{table}")


@pytest.mark.parametrize("text", ["#cloud-config\n", "é\n" * 5000, "x" * 21_000])
@pytest.mark.parametrize("keys", [(), ("ssh-ed25519 AAAA é",) * 9])
def test_no_less_is_counted_for_hetzner_than_is_sent(text: str, keys: tuple[str, ...]) -> None:
    told = Identity(
        instance=f"hostler-{'v' * 50}",
        hostname="h" * 63,
        user="u" * 32,
        host_key=new_host_key().private,
        ssh_keys=(*keys, f"ssh-rsa {'A' * 400} of the terminal"),
        user_data=text,
        mac="52:54:00:00:00:00",
    )
    sent = len(nocloud_files(told)["user-data"])
    counted = user_data_bytes(LabTemplate(user_data=text, ssh_keys=keys))
    assert sent <= counted <= sent + 1024


def test_a_catalogue_that_no_store_takes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "much.yaml").write_text("x" * MAX_CLOUD_INIT)
    tables = "\n".join(f"[labs.{number}]\ncloud_init = 'much.yaml'" for number in range(1, 40))
    with pytest.raises(Invalid, match="with its cloud-init files"):
        loaded(tmp_path, tables)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), (" 1h30m ", 5400), ("1.5m", 90), (0, 0), ("1w", 604800)]
)
def test_durations_are_read_as_people_write_them(text: object, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-1s", "1y", "1e3", "inf", True, "400000d"])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="duration|ten years"):
        seconds_of(text)


def test_sizes_are_read_as_people_write_them() -> None:
    assert [mebibytes_of(text) for text in (512, "512", "512M", "2 GiB", "1t")] == [512, 512, 512, 2048, 1024**2]
