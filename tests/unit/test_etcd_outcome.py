"""What each of etcd's errors means to the caller: nothing that may have happened is called undone."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from hostler.drivers.store.etcd.auth import Access
from hostler.drivers.store.etcd.codec import end_of, span
from hostler.drivers.store.etcd.errors import Fate, fate, refusal, words_of
from hostler.errors import Damaged, Forbidden, FutureRevision, HostlerError, Invalid, LeaseGone, TooLarge

CODE = grpc.StatusCode


def error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, None)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (CODE.UNAVAILABLE, "etcdserver: request timed out"),
        (CODE.UNAVAILABLE, "etcdserver: request timed out, possibly due to previous leader failure"),
        (CODE.UNAVAILABLE, "etcdserver: request timed out, possibly due to connection lost"),
        (CODE.UNAVAILABLE, "etcdserver: leader changed"),
        (CODE.UNAVAILABLE, "etcdserver: server stopped"),
        (CODE.UNAVAILABLE, "Socket closed"),
        (CODE.UNAVAILABLE, "recvmsg:Connection reset by peer"),
        (CODE.UNAVAILABLE, "keepalive watchdog timeout"),
        (CODE.DEADLINE_EXCEEDED, "Deadline Exceeded"),
        (CODE.DEADLINE_EXCEEDED, "context deadline exceeded"),
        (CODE.UNKNOWN, "raft proposal dropped"),
        (CODE.INTERNAL, "Received RST_STREAM with error code 2"),
        (CODE.CANCELLED, "etcdserver: watch canceled"),
        (CODE.UNKNOWN, ""),
        (CODE.RESOURCE_EXHAUSTED, "something new"),
    ],
)
def test_what_is_not_known_to_have_done_nothing_may_have_happened(code: grpc.StatusCode, details: str) -> None:
    assert fate(error(code, details)) is Fate.UNKNOWN


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        (CODE.UNAVAILABLE, "etcdserver: no leader", Fate.NOT_SENT),
        (CODE.UNAVAILABLE, "etcdserver: rpc not supported for learner", Fate.NOT_SENT),
        (CODE.UNAVAILABLE, "failed to connect to all addresses; last error: refused", Fate.NOT_SENT),
        (CODE.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Fate.BUSY),
        (CODE.UNAUTHENTICATED, "etcdserver: invalid auth token", Fate.TOKEN),
        (CODE.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Fate.TOKEN),
        (CODE.INVALID_ARGUMENT, "etcdserver: user name is empty", Fate.TOKEN),
        (CODE.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Fate.FULL),
        (CODE.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Fate.COMPACTED),
    ],
)
def test_what_the_server_says_it_did_not_do_was_not_done(code: grpc.StatusCode, details: str, expected: Fate) -> None:
    assert fate(error(code, details)) is expected


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (CODE.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", FutureRevision),
        (CODE.NOT_FOUND, "etcdserver: requested lease not found", LeaseGone),
        (CODE.INVALID_ARGUMENT, "etcdserver: request is too large", TooLarge),
        (CODE.RESOURCE_EXHAUSTED, "grpc: received message larger than max (9 vs. 2)", TooLarge),
        (CODE.INVALID_ARGUMENT, "etcdserver: too many operations in txn request", TooLarge),
        (CODE.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", Invalid),
        (CODE.PERMISSION_DENIED, "etcdserver: permission denied", Forbidden),
        (CODE.PERMISSION_DENIED, "some proxy's own words", Forbidden),
        (CODE.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password", Forbidden),
        (CODE.DATA_LOSS, "etcdserver: corrupt cluster", Damaged),
    ],
)
def test_a_refusal_is_of_its_kind(code: grpc.StatusCode, details: str, kind: type[HostlerError]) -> None:
    caught = error(code, details)
    assert fate(caught) is Fate.REFUSED
    assert type(refusal("etcd Put", caught)) is kind


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", (b"\0", b"\0")),
        ("a", (b"a", b"b")),
        ("a/", (b"a/", b"a0")),
        ("é", (b"\xc3\xa9", b"\xc3\xaa")),
        ("\0", (b"\0", b"\1")),
    ],
)
def test_a_prefix_is_a_range_up_to_its_successor(prefix: str, expected: tuple[bytes, bytes]) -> None:
    assert span(prefix) == expected


def test_a_prefix_of_highest_bytes_has_no_end_or_a_shorter_one() -> None:
    assert end_of(b"\xff\xff") == b"\0"
    assert end_of(b"a\xff\xff") == b"b"


def test_a_password_is_never_printed() -> None:
    assert "s3cr3t" not in repr(Access(user="root", password="s3cr3t"))


def test_what_a_connection_says_is_not_taken_for_our_advice() -> None:
    words = words_of(error(CODE.UNAVAILABLE, "failed to connect to all addresses; last error: refused\nmore"))
    assert words == "UNAVAILABLE: failed to connect to all addresses, last error: refused"
