"""All API calls to Hetzner Cloud, each in its own daemon thread, because the client is synchronous.

A thread that reads dies with the process: its result is of no use then. A thread that writes may be in the middle of a
change, so cancelled callers and `aclose` wait for it up to `LEAVES_WITHIN` seconds. After that the next start reads the
outcome from the API, as after a kill.

Answers are converted to plain values in the thread of the call, because the client's own objects make further API calls
when their attributes are read.

The client's own sleeping and retrying is switched off. This module decides what is retried, and when.

    busy (`locked`, `conflict`)   retried with growing pauses up to `locked_within`: nothing changed
    too many calls (429)          no call is sent until the rate limit allows it
    everything else               not retried; `api_types.py` says what it means
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import hcloud
from hcloud.firewalls import Firewall
from hcloud.images import Image
from hcloud.locations import Location
from hcloud.server_types import ServerType
from hcloud.servers import Server as TheirServer
from hcloud.servers import ServerCreatePublicNetwork
from hcloud.ssh_keys import SSHKey

from hostler.drivers.machines.hetzner import labels
from hostler.drivers.machines.hetzner.api_types import (
    LONGEST,
    Absent,
    Busy,
    action_of,
    bound_action_of,
    is_limit,
    kind_of,
    server_of,
    snapshot_of,
    translate_error,
)
from hostler.errors import Closed, Forbidden, HostlerError, Refused, TooManyTries
from hostler.kit.rate_limit import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import requests

    from hostler.drivers.machines.hetzner.api_types import Action, Kind, Server, Snapshot
    from hostler.drivers.machines.hetzner.descriptor import HetznerOptions
    from hostler.kit.clock import Clock

T = TypeVar("T")
LEAVES_WITHIN = 3.0
"""Seconds that a cancelled or closing caller waits for a running write."""


class Threads:
    """Runs up to `most` calls at once."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)
        self._writes: dict[asyncio.Future[Any], str] = {}
        """Running writes, with the subject of each."""
        self._left: set[asyncio.Future[Any]] = set()
        """Running writes that no caller waits for any more."""

    async def read(self, call: Callable[[], T]) -> T:
        """Run a call that only reads. A cancelled caller returns at once."""
        await self._free.acquire()
        return await self._start_thread(call)

    async def write(self, what: str, call: Callable[[], T]) -> T:
        """Run a call that writes. A cancelled caller waits up to `LEAVES_WITHIN` seconds for its end."""
        await self._free.acquire()
        answer = self._start_thread(call)
        self._writes[answer] = what
        answer.add_done_callback(self._end_write)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            await self._leave({answer})
            raise

    async def wait_until_settled(self, what: str) -> None:
        """Wait until no abandoned write about `what` is running."""
        while left := [answer for answer in self._left if self._writes[answer] == what]:
            await asyncio.wait(left)

    async def aclose(self) -> None:
        """Wait up to `LEAVES_WITHIN` seconds for running writes, except those already abandoned."""
        await self._leave(self._writes.keys() - self._left)

    async def _leave(self, answers: set[asyncio.Future[Any]]) -> None:
        """Wait up to `LEAVES_WITHIN` seconds for these writes, even when cancelled; then mark the rest as abandoned."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LEAVES_WITHIN
        while answers and (left := until - loop.time()) > 0:
            with contextlib.suppress(asyncio.CancelledError):
                _, answers = await asyncio.wait(answers, timeout=left)
        self._left |= answers & self._writes.keys()

    def _end_write(self, answer: asyncio.Future[Any]) -> None:
        del self._writes[answer]
        self._left.discard(answer)
        if not answer.cancelled():
            answer.exception()  # marks the exception as retrieved

    def _start_thread(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Start a thread for the call. The caller has acquired a slot, which is released when the call ends."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def done(finish: Callable[[], None]) -> None:
            self._free.release()
            if not answer.done():
                finish()

        def work() -> None:
            try:
                finish = partial(answer.set_result, call())
            except Exception as error:  # noqa: BLE001 - raised to the caller
                finish = partial(answer.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed, and no caller waits
                loop.call_soon_threadsafe(done, finish)
            del finish  # the frames of an exception would keep it, and with it their connections, alive

        threading.Thread(target=work, name="hetzner", daemon=True).start()
        return answer


THREADS = 8
CONNECTS_WITHIN = 5.0
AT_ONCE = 50
"""Number of objects that one call asks for."""
_NEAR = 0.05
"""Last fraction of the rate limit, reserved for calls that cannot be postponed."""


class Api:
    """Client of one Hetzner Cloud project. It raises only Hostler's errors."""

    def __init__(self, options: HetznerOptions, *, clock: Clock) -> None:
        self._options, self._clock = options, clock
        self._threads: Threads | None = None
        self._client: hcloud.Client | None = None
        self._limit: tuple[int, int] | None = None
        """Rate limit: calls allowed, calls left."""
        self._reset_at = 0.0
        self._silent_until = 0.0
        self._silences = Backoff(first=options.pace.silence, most=LONGEST)
        self.refused = ""
        """Why the API rejects the token; empty: no rejection is known."""
        self.calls = 0

    def open(self) -> None:
        client = hcloud.Client(
            self._options.token,
            api_endpoint=self._options.endpoint.rstrip("/"),
            application_name="hostler",
            timeout=(min(CONNECTS_WITHIN, self._options.pace.answers_within), self._options.pace.answers_within),
        )
        # The constructor has no option for either. By default the client sleeps for minutes and repeats uncertain
        # calls.
        client._client._retry_max_retries = 0
        client._client._session.hooks["response"].append(self._record_rate_limit)
        self._client = client
        self._threads = Threads(THREADS)

    async def aclose(self) -> None:
        """Close after running writes have ended or timed out; running reads are abandoned."""
        threads, self._threads, client, self._client = self._threads, None, self._client, None
        if threads is not None:
            await threads.aclose()
        if client is not None:
            client._client._session.close()

    @property
    def near_limit(self) -> bool:
        """Whether few calls are left, or none."""
        if self._clock.now() < self._silent_until:
            return True
        return self._limit is not None and self._limit[1] <= self._limit[0] * _NEAR

    def pause(self, pages: int = 1) -> float:
        """Return the seconds between two full listings such that they use at most a third of the rate limit."""
        if self._limit is None or self._limit[1] > self._limit[0] / 2:
            return 0.0
        return pages * 3 * 3600 / max(1, self._limit[0])

    async def wait_until_settled(self, name: str) -> None:
        """Wait until no write to that server is running whose caller was cancelled."""
        if self._threads is not None:
            await self._threads.wait_until_settled(f"server {name}")

    # Reading

    async def servers(self, *, name: str | None = None) -> Sequence[Server]:
        """Return all of Hostler's servers, or any server with that name."""
        selector = labels.SELECTOR if name is None else None
        return await self._read(
            f"server {name}" if name else "servers",
            lambda client: [server_of(each) for each in client.servers.get_all(name=name, label_selector=selector)],
        )

    async def actions(self, ids: Sequence[int]) -> dict[int, Action]:
        """Return the current state of these actions; unknown ones are left out."""
        found: dict[int, Action] = {}
        for at in range(0, len(ids), AT_ONCE):
            params = {"id": list(ids[at : at + AT_ONCE]), "per_page": AT_ONCE}
            found |= {each.id: each for each in await self._list_actions("actions", "/actions", params)}
        return found

    async def actions_of(self, server: Server) -> Sequence[Action]:
        """Return all past and running actions of a server."""
        path = f"/servers/{server.id}/actions"
        params = {"sort": "id:desc", "per_page": AT_ONCE}
        return await self._list_actions(f"server {server.name}", path, params)

    async def snapshots(self, selector: str = labels.SELECTOR) -> Sequence[Snapshot]:
        """Return the snapshots, oldest first."""

        def ask(client: hcloud.Client) -> list[Snapshot]:
            return [snapshot_of(each) for each in client.images.get_all(type=["snapshot"], label_selector=selector)]

        return sorted(await self._read("images", ask), key=lambda snapshot: snapshot.id)

    async def kinds(self) -> Sequence[Kind]:
        """Return the server types."""
        now = self._clock.wall()
        return await self._read(
            "server types", lambda client: [kind_of(each, now) for each in client.server_types.get_all()]
        )

    async def firewall(self, name: str) -> int:
        """Return the id of a firewall. Refused: no firewall has that name."""
        if name.isdecimal():
            return int(name)

        def ask(client: hcloud.Client) -> int | None:
            found = client.firewalls.get_by_name(name)
            return None if found is None else found.id

        number = await self._read("firewalls", ask)
        if number is None:
            raise Refused(f"firewall {name!r}: not found at Hetzner Cloud; set hcloud_firewall to an existing one")
        return number

    # Writing

    async def create(
        self,
        name: str,
        *,
        kind: str,
        location: str,
        image: str | int,
        user_data: str,
        labels: dict[str, str],
        firewall: int | None,
    ) -> tuple[Server, Sequence[Action]]:
        """Create a server; return it and the actions that must end before it is complete."""
        options = self._options

        def make(client: hcloud.Client) -> tuple[Server, Sequence[Action]]:
            made = client.servers.create(
                name,
                ServerType(name=kind),
                Image(id=image) if isinstance(image, int) else Image(name=image),
                ssh_keys=[SSHKey(name=key) for key in options.ssh_keys],
                firewalls=None if firewall is None else [Firewall(id=firewall)],
                user_data=user_data,
                labels=labels,
                location=Location(name=location) if location else None,
                start_after_create=False,
                public_net=ServerCreatePublicNetwork(enable_ipv4=options.ipv4, enable_ipv6=True),
            )
            going = [made.action, *(made.next_actions or ())]
            return server_of(made.server), [bound_action_of(action) for action in going]

        return await self._write(f"server {name}", make)

    async def act(self, server: Server, verb: str, **arguments: Any) -> Action:
        """Run an action: `poweron`, `poweroff`, `shutdown`, `reset`, `rebuild` or `change_type`."""
        path = f"/servers/{server.id}/actions/{verb}"
        return await self._write(
            f"server {server.name}",
            lambda client: action_of(client.request("POST", path, json=dict(arguments))["action"]),
        )

    async def snapshot(self, server: Server, description: str, labels: dict[str, str]) -> Action:
        def take(client: hcloud.Client) -> Action:
            made = client.servers.create_image(
                TheirServer(id=server.id), description=description, type="snapshot", labels=labels
            )
            return bound_action_of(made.action)

        return await self._write(f"server {server.name}", take)

    async def relabel(self, server: Server, labels: dict[str, str]) -> Server:
        """Replace all labels of a server."""
        return await self._write(
            f"server {server.name}",
            lambda client: server_of(client.servers.update(TheirServer(id=server.id), labels=labels)),
        )

    async def rename(self, server: Server, name: str, labels: dict[str, str]) -> Server:
        """Replace the name and all labels of a server in one call. Taken: another server has that name."""
        return await self._write(
            f"server {server.name}",
            lambda client: server_of(client.servers.update(TheirServer(id=server.id), name=name, labels=labels)),
        )

    async def relabel_image(self, image: int, labels: dict[str, str]) -> None:
        """Replace all labels of a snapshot. Does nothing if the snapshot is gone."""
        try:
            await self._write(f"image {image}", lambda client: client.images.update(Image(id=image), labels=labels))
        except Absent:
            return

    async def delete(self, server: Server) -> Action | None:
        """Delete a server. None: it was already gone."""
        try:
            return await self._write(
                f"server {server.name}",
                lambda client: bound_action_of(client.servers.delete(TheirServer(id=server.id))),
            )
        except Absent:
            return None

    async def delete_image(self, image: int) -> None:
        """Delete an image. Does nothing if it is gone."""
        try:
            await self._write(f"image {image}", lambda client: client.images.delete(Image(id=image)))
        except Absent:
            return

    # Inside

    async def _list_actions(self, what: str, path: str, params: dict[str, Any]) -> Sequence[Action]:
        def ask(client: hcloud.Client) -> list[Action]:
            return [action_of(each) for each in client.request("GET", path, params=params)["actions"]]

        return await self._read(what, ask)

    async def _read(self, what: str, call: Callable[[hcloud.Client], T]) -> T:
        return await self._call(what, call, writes=False)

    async def _write(self, what: str, call: Callable[[hcloud.Client], T]) -> T:
        backoff = Backoff(first=self._options.pace.poll_first, most=self._options.pace.poll_most)
        until = self._clock.now() + self._options.pace.locked_within
        while True:
            try:
                return await self._call(what, call, writes=True)
            except Busy:
                if self._clock.now() >= until:
                    raise
            await self._clock.sleep(backoff.next())

    async def _call(self, what: str, call: Callable[[hcloud.Client], T], *, writes: bool) -> T:
        threads, client = self._threads, self._client
        if threads is None or client is None:
            raise Closed("Hetzner machines: the driver is not open; enter it with `async with` first")
        left = self._silent_until - self._clock.now()
        if left > 0:
            raise TooManyTries(f"{what}: Hetzner Cloud was called too often; try again in {left:.0f} s", left)
        self.calls += 1

        def run() -> T:
            try:
                return call(client)
            finally:
                if self._client is not client:  # closed during the call, which may have reconnected since
                    client._client._session.close()

        try:
            answer = await (threads.write(what, run) if writes else threads.read(run))
        except HostlerError:
            raise
        except Exception as error:  # noqa: BLE001 - the client raises anything on a malformed answer
            raise self._failure_of(error, what, writes=writes) from None
        self.refused = ""
        self._silences.reset()
        return answer

    def _failure_of(self, error: Exception, what: str, *, writes: bool) -> HostlerError:
        wait = self._wait() if is_limit(error) else 0.0
        failure = translate_error(error, what, writes=writes, after=wait)
        if isinstance(failure, TooManyTries):
            self._silent_until = self._clock.now() + wait
        elif isinstance(failure, Forbidden):
            self.refused = str(failure)
        return failure

    def _wait(self) -> float:
        """Return the seconds until calls may be sent again.

        The header gives the time when all calls are available again, but they become available one by one.
        """
        left = self._reset_at - self._clock.wall()
        return left if 0 < left <= LONGEST else self._silences.next()

    def _record_rate_limit(self, response: requests.Response, *_: Any, **__: Any) -> None:
        """Record the rate limit of the response headers. Runs in the thread of the call."""
        try:
            allowed, left = (int(response.headers[f"RateLimit-{name}"]) for name in ("Limit", "Remaining"))
            self._limit = (allowed, left)
            self._reset_at = float(response.headers["RateLimit-Reset"])
        except (LookupError, ValueError):
            return
