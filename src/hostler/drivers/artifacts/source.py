"""Source that strangers wrote: whether it is Python, and marks anything. It is read, and nothing of it is run."""

from __future__ import annotations

import ast
from threading import Lock

from hostler.errors import Invalid

MAX_READ = 2 * 1024 * 1024
"""Bytes of one file that are read so: it takes time, and much memory. Larger ones are believed."""
_ALONE = Lock()
"""Of two threads that parse at once Python 3.11 loses count, and raises a SystemError (gh-106905)."""
_LIBRARY, _MARK = "hostler.slices", "method"


def parsed_source(name: str, data: bytes) -> ast.Module:
    """Nobody shall find out on a node that a bracket is missing."""
    try:
        with _ALONE:
            return ast.parse(data, filename=name)
    except SyntaxError as error:
        raise Invalid(f"{name}:{error.lineno or 1}: {error.msg}; correct it there") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Invalid(f"{name}: it is no Python ({error or type(error).__name__}); name another file") from None


def marks(tree: ast.Module) -> bool:
    """Whether it uses `hostler.slices.method`, under whatever name: as a decorator, or else."""
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
    """What to raise of what could be loaded, and never be called."""
    return Invalid(f"{name}: nothing in it can be called; mark a function with @method of {_LIBRARY}")
