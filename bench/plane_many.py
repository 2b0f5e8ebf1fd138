"""A hundred thousand machines: memory and response times of a replica with its view and controllers."""

from __future__ import annotations

import statistics
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from bench.plane_fill import IN_PROJECT, ORG, fill, project_of
from bench.plane_http import get, lines, until
from bench.plane_process import replica, token_kept
from bench.report import Row
from hostler.entry.cli.options import path_url
from hostler.errors import Unavailable
from hostler.model.vm_api import VmPage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.plane_http import Line

LIMIT = 100
PAGE_MS, MEMORY_MIB, READY_S = 50, 1024, 10
PATIENCE = 120.0


async def measure(folder: Path, machines: int, nodes: int, pages: int, tell: Callable[[str], None]) -> list[Row]:
    """Fill a store, start a replica once to create an account, then start it again and measure."""
    url = path_url("sqlite", folder / "many.db")
    await fill(url, machines, nodes, tell)
    async with replica(url, folder) as first:
        token = token_kept(await first.says("token is kept in ", PATIENCE))
    tell("starting again")
    began = perf_counter()
    async with replica(url, folder) as process:
        at = await process.says("serving ", PATIENCE)
        async with lines(at, 1) as (line,):
            await until("ready", lambda: _answers(line, get(at, "/readyz")), PATIENCE)
            await _page(line, get(at, f"/v1/vms?limit={LIMIT}", token), min(LIMIT, machines))
            ready, worked = perf_counter() - began, process.cpu()
            await process.says("leading with fence", PATIENCE)
            leading = perf_counter() - began
            tell("listing all, page by page")
            whole = await _walk(line, at, "/v1/vms", token, pages)
            tell("listing projects")
            one = await _projects(line, at, token, machines, pages)
        memory = process.memory_mib("VmRSS")
        most = process.memory_mib("VmHWM")
    return _rows(machines, (ready, worked, leading), whole, one, memory=memory, most=most)


def _rows(
    machines: int,
    start: tuple[float, float, float],
    whole: list[float],
    one: list[float],
    *,
    memory: float,
    most: float,
) -> list[Row]:
    """`start`: seconds until it was ready, processor seconds until then, and seconds until it led."""
    ready, worked, leading = start
    many = f"{machines:,} VMs: "
    return [
        Row(what=many + "restart to ready, first list", found=ready, unit="s", wanted=READY_S, at_most=True),
        Row(what=many + "… processor time until then", found=worked, unit="s"),
        Row(what=many + "restart to leading", found=leading, unit="s"),
        Row(what=many + "memory of the server, at most", found=most, unit="MiB", wanted=MEMORY_MIB, at_most=True),
        Row(what=many + "memory of the server, in the end", found=memory, unit="MiB"),
        Row(what=many + "page of 100 of all, p99", found=_p99(whole), unit="ms", wanted=PAGE_MS, at_most=True),
        Row(what=many + "page of 100 of all, p50", found=statistics.median(whole) * 1000, unit="ms"),
        Row(what=many + "page of 100 of a project, p99", found=_p99(one), unit="ms", wanted=PAGE_MS, at_most=True),
    ]


def _p99(times: list[float]) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000


async def _answers(line: Line, request: bytes) -> bool:
    return (await line.ask(request)).status == 200


async def _page(line: Line, request: bytes, least: int) -> VmPage:
    """Return a page with at least `least` machines, all running. Unavailable: the page is different."""
    reply = await line.ask(request)
    if reply.status != 200:
        raise Unavailable(f"list: answered {reply.status}: {reply.body[:200].decode('utf-8', 'replace')}")
    page = msgspec.json.decode(reply.body, type=VmPage)
    if len(page.items) < least or any(item.phase != "running" for item in page.items):
        raise Unavailable(f"list: {len(page.items)} machines, or not all of them running; expected {least} running")
    return page


async def _walk(line: Line, at: str, path: str, token: str, pages: int) -> list[float]:
    """Read page after page, starting again at the end. Return the seconds of each."""
    times: list[float] = []
    after = ""
    while len(times) < pages:
        request = get(at, f"{path}?limit={LIMIT}{f'&after={after}' if after else ''}", token)
        began = perf_counter()
        reply = await line.ask(request)
        times.append(perf_counter() - began)
        if reply.status != 200:
            raise Unavailable(f"list: answered {reply.status}: {reply.body[:200].decode('utf-8', 'replace')}")
        after = msgspec.json.decode(reply.body, type=VmPage).after or ""
    return times


async def _projects(line: Line, at: str, token: str, machines: int, pages: int) -> list[float]:
    """Read the first page of project after project. Return the seconds of each."""
    times: list[float] = []
    for number in range(pages):
        project = project_of(number * IN_PROJECT % machines)
        request = get(at, f"/v1/orgs/{ORG}/projects/{project}/vms?limit={LIMIT}", token)
        began = perf_counter()
        reply = await line.ask(request)
        times.append(perf_counter() - began)
        if reply.status != 200:
            raise Unavailable(f"list: answered {reply.status}")
    return times
