"""`hostler invoke`: what is typed becomes arguments, and what comes back is shown."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hostler.entry.cli import invoke, main
from hostler.errors import DeadlinePassed, Raised, Unavailable


class FakeClient:
    """Answers what it was asked, or raises."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.error: Exception | None = None

    async def answers(
        self, target: str, method: str, arguments: Any, *, within: float
    ) -> AsyncGenerator[tuple[Any, bool], None]:
        self.asked.append((target, method, arguments, within))
        for number in (1, 2) if method == "count" else ():
            yield {"n": number}, True
        if self.error is not None:
            raise self.error
        if method != "count":
            yield arguments, False


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    made = FakeClient()

    @asynccontextmanager
    async def reached(_: object) -> AsyncIterator[FakeClient]:
        yield made

    monkeypatch.setattr(invoke, "open_client", reached)
    monkeypatch.setattr(invoke, "chosen_server", lambda: None)
    return made


def test_values_that_are_json_are_that_and_others_are_text(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = ("n=3", "yes=true", "name=Ada", "list=[1, 2]", 'text="3"', "empty=", "a=b=c")
    assert main(["invoke", "acme:shop", "sell", *pairs]) == 0
    expected = {"n": 3, "yes": True, "name": "Ada", "list": [1, 2], "text": "3", "empty": "", "a": "b=c"}
    assert client.asked == [("acme:shop", "sell", expected, 30.0)]
    assert '"name": "Ada"' in capsys.readouterr().out
    assert main(["invoke", "acme:shop", "sell", "--within", "1m"]) == 0
    assert client.asked[-1] == ("acme:shop", "sell", {}, 60.0)


def test_arguments_come_as_one_object_too(client: FakeClient, tmp_path: Path) -> None:
    file = tmp_path / "arguments.json"
    file.write_text('{"from": "file"}')
    for given in ('{"from": "file"}', f"@{file}"):
        assert main(["invoke", "acme:shop", "sell", "--json", given]) == 0
        assert client.asked[-1][2] == {"from": "file"}


@pytest.mark.parametrize(
    "wrong",
    [
        ("--json", "[1]"),
        ("--json", "{"),
        ("--json", "@/nowhere/at/all"),
        ("--json", "{}", "a=1"),
        ("a",),
        ("=1",),
        ("a=1", "a=2"),
        ("--within", "2h"),
        ("--within", "0"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_called(client: FakeClient, wrong: tuple[str, ...]) -> None:
    assert main(["invoke", "acme:shop", "sell", *wrong]) == 2
    assert not client.asked


def test_a_stream_is_shown_line_by_line_also_when_it_breaks_off(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ((), ("--stream",)):
        client.error = None
        assert main(["invoke", "acme:shop", "count", *more]) == 0
        assert capsys.readouterr().out == '{"n":1}\n{"n":2}\n'
        client.error = Unavailable("acme:shop count: it ended; try again")
        assert main(["invoke", "acme:shop", "count", *more]) == 5
        shown = capsys.readouterr()
        assert shown.out == '{"n":1}\n{"n":2}\n'
        assert "it ended" in shown.err
    client.error = None
    assert main(["invoke", "acme:shop", "sell", "a=1"]) == 0
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n'
    assert main(["invoke", "acme:shop", "sell", "a=1", "--stream"]) == 0
    assert capsys.readouterr().out == '{"a":1}\n'


@pytest.mark.parametrize(
    ("error", "code"),
    [(Raised("acme:shop sell: raised ValueError: no"), 12), (DeadlinePassed("late"), 6), (Unavailable("nobody"), 5)],
)
def test_each_failure_has_its_exit_code(
    client: FakeClient, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    client.error = error
    assert main(["invoke", "acme:shop", "sell"]) == code
    assert str(error) in capsys.readouterr().err
