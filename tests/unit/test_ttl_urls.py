"""URLs of ttl storages: what is understood, and what is refused with a line that helps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import hostler
from hostler.drivers.ttl.cassandra import CassandraTtlStorage
from hostler.drivers.ttl.dynamodb import DynamodbTtlStorage
from hostler.drivers.ttl.redis import RedisTtlStorage
from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.errors import Invalid


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory://", StoreTtlStorage),
        ("sqlite:///tmp/x.db", StoreTtlStorage),
        ("etcd://localhost:2379", StoreTtlStorage),
        ("redis://localhost", RedisTtlStorage),
        ("redis://user:p%40ss@localhost:6380/3?timeout=2", RedisTtlStorage),
        ("redis://[::1]:6379/0", RedisTtlStorage),
        ("rediss://localhost:6379/0?ca=/ca.pem&cert=/c.pem&key=/k.pem", RedisTtlStorage),
        ("dynamodb://a-table?endpoint=http://localhost:8000&region=eu-central-1&create=true", DynamodbTtlStorage),
        ("cassandra://one,two:9042/keyspace?datacenter=here&replicas=3&table=t&user=u&password=p", CassandraTtlStorage),
    ],
)
def test_a_url_gives_its_storage(url: str, kind: type) -> None:
    assert isinstance(hostler.open_ttl_storage(url), kind)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://host", "unknown; known are memory://.*redis://.*dynamodb://.*cassandra://"),
        ("redis://", "needs host:port"),
        ("redis://host:99999999", "needs host:port"),
        ("redis://host/db", "needs a database number"),
        ("redis://host?nonsense=1", "unknown option 'nonsense'"),
        ("redis://host?timeout=0", "the option 'timeout' must be a number"),
        ("redis://host?ca=/x", "unknown option 'ca'"),
        ("redis://host?password=a&password_file=b", "either password or password_file"),
        ("redis://host?password_file=/nonexistent", "password_file '/nonexistent' cannot be read"),
        ("redis://host#x", "%23"),
        ("dynamodb://", "names a table"),
        ("dynamodb://table/more", "names a table"),
        ("dynamodb://table?create=yes", "must be true or false"),
        ("cassandra://host", "keyspace and table must be a letter"),
        ('cassandra://host/a"b', "keyspace and table must be a letter"),
        ("cassandra://host/ks?table=x.y", "keyspace and table must be a letter"),
        ("cassandra://host/ks?replicas=0", "the option 'replicas' must be"),
    ],
)
def test_a_url_that_cannot_be_is_refused_with_a_reason(url: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        hostler.open_ttl_storage(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["redis://host", "cassandra://host/ks"])
def test_a_password_file_that_is_not_utf8_is_refused_by_its_name(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "pw").write_bytes(b"s3cret\xff\n")
    with pytest.raises(Invalid, match=f"password_file '{tmp_path}/pw' cannot be read .it is not UTF-8") as caught:
        hostler.open_ttl_storage(f"{scheme}?password_file={tmp_path}/pw")
    assert "s3cret" not in str(caught.value)


def test_a_password_comes_from_its_file_and_is_in_no_message(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("s3cret\n")
    for url in (
        f"redis://host:1/0?password_file={tmp_path}/pw&bad=1",
        "redis://u:s3cret@host:99999999",
        "cassandra://u:s3cret@host/!",
    ):
        with pytest.raises(Invalid) as caught:
            hostler.open_ttl_storage(url)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("extra", "module", "url"),
    [
        ("redis", "redis", "redis://host"),
        ("dynamodb", "aiobotocore", "dynamodb://table"),
        ("cassandra", "cassandra", "cassandra://host/ks"),
    ],
)
def test_a_client_that_is_not_installed_is_named_with_the_command_that_installs_it(
    extra: str, module: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith(f"hostler.drivers.ttl.{extra}")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(Invalid) as caught:
        hostler.open_ttl_storage(url)
    assert str(caught.value) == f"{extra}: its client is not installed; run: pip install 'hostler[{extra}]'"
