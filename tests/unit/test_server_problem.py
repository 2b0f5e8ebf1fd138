"""Errors as problem documents."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from hostler import errors
from hostler.entry.server.problem import SORTS, Refusal, Sort, tell
from hostler.model.control_api import Problem

EXPECTED = {
    errors.Refused: 400,
    errors.Invalid: 400,
    errors.TooLarge: 413,
    errors.FutureRevision: 400,
    errors.NotFound: 404,
    errors.LeaseGone: 503,
    errors.Forbidden: 403,
    errors.Unauthenticated: 401,
    errors.QuotaExceeded: 409,
    errors.Damaged: 500,
    errors.Closed: 503,
    errors.Missed: 503,
    errors.Compacted: 503,
    errors.Lagged: 503,
    errors.Conflict: 409,
    errors.LockHeld: 409,
    errors.Stale: 412,
    errors.KeyReused: 422,
    errors.Unavailable: 503,
    errors.TooManyTries: 429,
    errors.OverBudget: 429,
    errors.Uncertain: 503,
    errors.DeadlinePassed: 504,
    errors.Raised: 502,
    errors.LeadershipLost: 503,
}


def _made(kind: type[errors.HostlerError]) -> errors.HostlerError:
    if kind is errors.Compacted:
        return errors.Compacted(7)
    if kind is errors.Lagged:
        return errors.Lagged("/x", 7)
    if kind is errors.Missed:
        return errors.Missed("events were missed; list again", 7)
    if issubclass(kind, errors.TooManyTries):
        return kind("login: too many tries; wait", 2.2)
    return kind("subject: what happened; what to do next")


def _kinds(parent: type[errors.HostlerError]) -> Iterator[type[errors.HostlerError]]:
    for kind in parent.__subclasses__():
        if kind.__module__ == "hostler.errors":
            yield kind
            yield from _kinds(kind)


def test_every_error_has_a_status_that_somebody_chose() -> None:
    assert set(_kinds(errors.HostlerError)) == set(EXPECTED)


@pytest.mark.parametrize("kind", EXPECTED, ids=lambda kind: kind.__name__)
def test_an_error_becomes_its_status(kind: type[errors.HostlerError]) -> None:
    told = tell(_made(kind), instance="id-1")
    problem = msgspec.json.decode(told.body, type=Problem)
    assert problem.status == EXPECTED[kind]
    assert problem.instance == "id-1"
    assert problem.type == f"about:hostler/{told.sort.name}"
    assert problem.detail
    assert problem.next


def test_what_to_do_next_is_told_apart_from_what_happened() -> None:
    problem = tell(errors.Conflict("vm a; b: changed meanwhile; read it again")).problem
    assert problem.detail == "vm a; b: changed meanwhile"
    assert problem.next == "read it again"


def test_an_error_without_advice_gets_that_of_its_sort() -> None:
    problem = tell(errors.Invalid("cpus: must be above 0")).problem
    assert problem.detail == "cpus: must be above 0"
    assert problem.next == "correct the request"


@pytest.mark.parametrize("error", [RuntimeError("secret 42"), errors.Damaged("/k: secret 42"), KeyError("secret 42")])
def test_a_fault_of_ours_tells_nothing_of_the_inside(error: Exception) -> None:
    told = tell(error)
    assert told.problem.status == 500
    assert b"42" not in told.body


def test_who_must_wait_is_told_how_long() -> None:
    assert dict(tell(errors.TooManyTries("login: slow down", 2.2)).headers)[b"retry-after"] == b"3"
    assert dict(tell(errors.Unavailable("store: out of reach")).headers)[b"retry-after"] == b"1"
    assert dict(tell(errors.Uncertain("store: lost")).headers)[b"retry-after"] == b"1"


def test_uncertain_is_told_apart_from_unavailable() -> None:
    assert tell(errors.Uncertain("x: y")).problem.type != tell(errors.Unavailable("x: y")).problem.type


def test_an_unknown_caller_is_told_how_to_introduce_itself() -> None:
    assert b"Bearer" in dict(tell(errors.Unauthenticated("token: none")).headers)[b"www-authenticate"]


def test_a_lone_surrogate_in_a_message_does_not_break_the_document() -> None:
    assert msgspec.json.decode(tell(errors.Invalid("name '\ud800': no")).body)["status"] == 400


def test_names_of_sorts_are_unique() -> None:
    assert len({sort.name for sort in SORTS}) == len(SORTS)


def test_the_doors_own_headers_go_along() -> None:
    sort = Sort("x", 405, "X", "y")
    assert (b"allow", b"GET") in tell(Refusal(sort, "m", ((b"allow", b"GET"),))).headers
