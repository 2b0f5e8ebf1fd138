"""What slices are written with: marks, typed arguments, the module, the context."""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import msgspec
import pytest

from hostler.slices import call as call_slice
from hostler.slices import context, method, stream, wait
from hostler.slices.module import BadArguments, Signature, SliceModule, mark_of, methods_of


def module_of(source: str, name: str = "a_slice") -> ModuleType:
    module = ModuleType(name)
    exec(compile(textwrap.dedent(source), f"{name}.py", "exec", dont_inherit=True), module.__dict__)
    return module


def test_a_marked_function_stays_as_it_is() -> None:
    @method
    def plain(a: int) -> int:
        return a + 1

    @method(idempotent=True, name="called_so")
    async def waits() -> None: ...

    assert plain(1) == 2
    plain_mark, other = mark_of(plain), mark_of(waits)
    assert plain_mark is not None
    assert other is not None
    assert (plain_mark.name, plain_mark.idempotent) == ("plain", False)
    assert (other.name, other.idempotent) == ("called_so", True)
    assert mark_of(test_a_marked_function_stays_as_it_is) is None


@pytest.mark.parametrize("name", ["_hidden", "a b", "a:b", "1st", "a/b"])
def test_names_that_cannot_stand_in_a_key_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match="cannot be a method's name"):
        method(name=name)(lambda: None)


class Point(msgspec.Struct):
    x: int
    y: int = 0


def takes(
    count: int,
    point: Point,
    kind: Literal["a", "b"] = "a",
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5,
    names: list[str] = ["usual"],  # noqa: B006 - a default that is an object
    *,
    anything: Any = None,
    untyped=7,
) -> None: ...


def test_arguments_are_read_by_their_annotations() -> None:
    read = Signature("takes", takes).read
    assert read(b'{"count": 1, "point": {"x": 2}}') == {"count": 1, "point": Point(2)}
    found = read(
        b'{"count": 1, "point": {"x": 2, "y": 3}, "kind": "b", "share": 1, "names": [], "anything": {"a": [1]}}'
    )
    assert found == {
        "count": 1,
        "point": Point(2, 3),
        "kind": "b",
        "share": 1.0,
        "names": [],
        "anything": {"a": [1]},
    }
    assert read(b'{"count": 1, "point": {"x": 2}, "untyped": "x"}')["untyped"] == "x"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (b"{}", "takes: argument missing: `count`"),
        (b'{"count": "1", "point": {"x": 1}}', "takes: argument count: Expected `int`, got `str`"),
        (b'{"count": 1, "point": {"x": null}}', "takes: argument point.x: Expected `int`, got `null`"),
        (b'{"count": 1, "point": {"x": 1}, "kind": "c"}', "takes: argument kind: Invalid enum value 'c'"),
        (b'{"count": 1, "point": {"x": 1}, "share": 2}', "takes: argument share: Expected `float` <= 1.0"),
        (b'{"count": 1, "point": {"x": 1}, "cuont": 1}', "takes: unknown argument `cuont`"),
        (b"[]", "takes: Expected `object`, got `array`"),
        (b'{"count": 1', "takes: Input data was truncated"),
        (b"\xff", "takes: "),
        (b"[" * 100_000, "takes: "),
    ],
)
def test_wrong_arguments_are_told_by_their_name(arguments: bytes, message: str) -> None:
    with pytest.raises(BadArguments, match=re.escape(message)):
        Signature("takes", takes).read(arguments)


def test_no_arguments_may_be_left_out() -> None:
    def nothing() -> None: ...

    read = Signature("nothing", nothing).read
    assert read(b"") == read(b"{}") == read(b" {} ") == {}
    with pytest.raises(BadArguments, match="unknown argument `a`"):
        read(b'{"a": 1}')


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(*a): ...", r"method f: takes \*a"),
        ("def f(**a): ...", r"method f: takes \*\*a"),
        ("def f(a, /): ...", "method f: takes a by its position only"),
        ("def f(a: 'Missing'): ...", "method f: its annotations cannot be read: name 'Missing'"),
        ("def f(a: str | bytes): ...", "method f: its arguments cannot be read from JSON"),
    ],
)
def test_what_cannot_be_called_by_json_is_told_when_it_is_loaded(source: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        methods_of(module_of(f"from hostler.slices import method\n@method\n{source}"))


def test_a_module_is_read_as_a_slice() -> None:
    found = SliceModule(
        module_of(
            """
            from hostler.slices import method
            def start(): ...
            @method
            def plain(): ...
            @method(idempotent=True)
            async def waits(): ...
            @method
            async def flows(): yield 1
            @method
            def drips(): yield 1
            alias = plain
            def not_a_method(): ...
            """
        )
    )
    kinds = {name: (one.method.streams, one.in_thread) for name, one in found.methods.items()}
    assert kinds == {
        "plain": (False, True),
        "waits": (False, False),
        "flows": (True, False),
        "drips": (True, True),
    }
    assert found.methods["waits"].method.idempotent
    assert (found.has_hook("start"), found.has_hook("stop")) == (True, False)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", "it has no methods"),
        ("@method\ndef a(): ...\n@method(name='a')\ndef b(): ...", "two methods are named a; b needs another name"),
        ("@method\ndef a(): ...\nstart = 3", "start must be a function"),
        ("@method\ndef a(): ...\ndef stop(x): ...", "stop must be callable without arguments"),
    ],
)
def test_what_is_no_slice_is_told(source: str, message: str) -> None:
    with pytest.raises(TypeError, match=f"a_slice: {message}"):
        SliceModule(module_of(f"from hostler.slices import method\n{source}"))


async def test_hooks_may_be_plain_or_coroutines() -> None:
    found = SliceModule(
        module_of(
            """
            from hostler.slices import method
            import threading
            @method
            def a(): ...
            def start(): return threading.current_thread() is threading.main_thread()
            async def healthy(): return "well"
            """
        )
    )
    assert await found.run_hook("start") is False  # a thread of its own: it may take its time
    assert await found.run_hook("healthy") == "well"
    assert await found.run_hook("stop") is None


async def test_outside_of_a_worker_there_is_nobody_to_call() -> None:
    assert (context().artifact, context().left) == ("", None)
    with pytest.raises(RuntimeError, match="this process is not a worker"):
        await call_slice("a:b", "c", x=1)
    with pytest.raises(RuntimeError, match="this process is not a worker"):
        async for _ in stream("a:b", "c"):
            pass
    with pytest.raises(RuntimeError, match="use await"):
        wait(call_slice("a:b", "c"))


def test_wait_in_a_thread_of_no_worker_runs_it() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 7

    assert wait(answer()) == 7


def blocks() -> Iterator[str]:
    text = (Path(__file__).parents[2] / "docs/slices.md").read_text(encoding="utf-8")
    yield from re.findall(r"```python\n(.*?)```", text, re.DOTALL)


async def test_the_example_in_the_documentation_is_a_slice_and_its_test_passes() -> None:
    example, test = list(blocks())[:2]
    module = module_of(example, "prices")
    found = SliceModule(module)
    assert set(found.methods) == {"price", "changes", "total"}
    assert found.methods["price"].method.idempotent
    assert found.methods["changes"].method.streams
    assert all(found.has_hook(name) for name in ("start", "stop", "healthy"))
    namespace: dict[str, Any] = {"prices": module}
    exec(
        compile(re.sub(r"^import prices$", "", test, flags=re.MULTILINE), "test_prices.py", "exec", dont_inherit=True),
        namespace,
    )
    await asyncio.to_thread(namespace["test_prices"])
