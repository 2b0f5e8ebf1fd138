"""Checks of untrusted source code: is it Python, and does it mark methods? The code is parsed, never run."""

from __future__ import annotations

import ast
from threading import Lock

from hostler.errors import Invalid

MAX_READ = 2 * 1024 * 1024
"""Maximum size in bytes of a file that is parsed, because parsing takes time and memory. Larger files are accepted."""
_ALONE = Lock()
"""Python 3.11 miscounts when two threads parse at the same time, and raises a SystemError (gh-106905)."""
_LIBRARY, _MARK = "hostler.slices", "method"


def parsed_source(name: str, data: bytes) -> ast.Module:
    """Parse source code, so that a syntax error is found before a node runs it."""
    try:
        with _ALONE:
            return ast.parse(data, filename=name)
    except SyntaxError as error:
        raise Invalid(f"{name}:{error.lineno or 1}: {error.msg}; correct it there") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Invalid(f"{name}: not Python ({error or type(error).__name__}); name another file") from None


def marks(tree: ast.Module) -> bool:
    """Return whether it uses `hostler.slices.method`, under any name, as a decorator or otherwise."""
    names, ways = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            if node.module in (_LIBRARY, f"{_LIBRARY}.declaring"):
                names |= {one.asname or one.name for one in node.names if one.name == _MARK}
                names |= {_MARK for one in node.names if one.name == "*"}
            if node.module == "hostler":
                ways |= {one.asname or one.name for one in node.names if one.name == "slices"}
        elif isinstance(node, ast.Import):
            ways |= {one.asname or one.name for one in node.names if one.name == _LIBRARY}
    return any(
        (isinstance(node, ast.Name) and node.id in names)
        or (isinstance(node, ast.Attribute) and node.attr == _MARK and ast.unparse(node.value) in ways)
        for node in ast.walk(tree)
    )


def no_marks(name: str) -> Invalid:
    """Return the error for code that can be loaded but has no method to call."""
    return Invalid(f"{name}: nothing in it can be called; mark a function with @method of {_LIBRARY}")
