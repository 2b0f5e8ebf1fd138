"""`client.labs`: a machine for every student."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import UNSET

from hostler.client.wait import Wait
from hostler.errors import Invalid, NotFound
from hostler.model.lab import ORG, LabEvent, lab_project
from hostler.model.lab_api import LabExtend, LabMessage, LabStart, LabView
from hostler.model.resources.machines import LabApi, LabTerminalApi

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from hostler.client.events import Events
    from hostler.client.resource import Keyed, Pages, StalePaging, WriteOptions
    from hostler.client.transport import HttpTransport, Query
    from hostler.model.lab_api import LabAnswer, LabNewsPage, LabOffers, LabPage
    from hostler.model.vm_api import TicketView


class Labs:
    """Labs, at most one for each user. Conflict: the rules do not allow the request; the message names the rule.

    Writes take `key`, an Idempotency-Key. Those about an existing lab also take `if_match`, its revision.
    """

    def __init__(self, wire: HttpTransport, events: Callable[..., Events]) -> None:
        self._wire, self._events = wire, events

    async def start(self, user: str, lab_id: int, **options: Unpack[Keyed]) -> LabAnswer:
        """Start a lab for a user; `answer.news` says whether it existed already."""
        return await self._wire.call(LabApi.start, body=LabStart(user=user, lab_id=lab_id), **options)

    async def stop(self, user: str, lab_id: int | None = None, **options: Unpack[WriteOptions]) -> LabAnswer:
        """Stop the user's lab; with a `lab_id`, only if it is that lab."""
        query: Query = {"labId": lab_id}
        return await self._wire.call(LabApi.stop, user, query=query, **options)

    async def extend(
        self,
        user: str,
        minutes: float,
        lab_id: int | None = None,
        **options: Unpack[WriteOptions],
    ) -> LabAnswer:
        """Extend the life of the lab by so many minutes."""
        body = LabExtend(minutes=minutes, lab_id=UNSET if lab_id is None else lab_id)
        return await self._wire.call(LabApi.extend, user, body=body, **options)

    async def message(self, user: str, text: str, **options: Unpack[WriteOptions]) -> LabAnswer:
        """Send a message to its user: one line of at most 500 characters."""
        body = LabMessage(text=text)
        return await self._wire.call(LabApi.message, user, body=body, **options)

    async def get(self, user: str, *, stale: bool = False) -> LabView:
        """Return the user's lab. NotFound: there is none."""
        return await self._wire.call(LabApi.get, user, stale=stale)

    def list(self, **options: Unpack[StalePaging]) -> Pages[LabPage, LabView]:
        """List all visible labs: `await` a page of `limit`, or `async for` over all."""
        return self._wire.list(LabApi.list, **options)

    async def news(self, user: str) -> LabNewsPage:
        """List the latest events of the user's labs, oldest first."""
        return await self._wire.call(LabApi.news, user)

    async def offers(self) -> LabOffers:
        """List the lab templates, with the number of running, waiting and warm labs."""
        return await self._wire.call(LabApi.offers)

    async def ticket(self, user: str) -> TicketView:
        """Return a one-time ticket for the terminal, valid for 30 s: for a browser, which cannot send a token there."""
        return await self._wire.call(LabTerminalApi.ticket, user)

    def terminal_url(self, user: str) -> str:
        """Return the WebSocket URL of a terminal in the user's lab; it needs the token, or a ticket."""
        return str(self._wire.address.to("labs", user, "terminal")).replace("http", "ws", 1)

    async def wait(
        self,
        user: str,
        *,
        available: bool = False,
        gone: bool = False,
        lab_id: int | None = None,
        generation: int | None = None,
        within: float = 600.0,
        on_change: Callable[[LabView], None] | None = None,
    ) -> LabView | None:
        """Wait until the user's lab (with `lab_id`, that lab) is available, or until the current one is `gone` (returns
        None). The current one is that of `generation`, as in `answer.lab` of a stop; else the first that is found.

        `on_change` gets the first state, and the state after each change. NotFound: there is no lab, or it ended while
        waiting for something else. Unavailable: not reached within `within` seconds.
        """
        if available == gone:
            raise Invalid("wait: give available or gone")
        look = _Look(self, user, on_change, generation)
        events = self._events(org=ORG, project=lab_project(user), kinds=("lab",))
        async with look.following(events, f"lab of {user}", within, "wait longer"):
            while True:
                view = await look.now()
                if gone and (view is None or look.is_another(view)):
                    return None
                if view is None:
                    raise NotFound(f"lab of {user}: {await self._ending(user)}; start it again")
                if available and view.available and lab_id in (None, view.lab_id):
                    return view
                await look.changed()

    async def _ending(self, user: str) -> str:
        """Describe how the last lab ended."""
        with suppress(NotFound):
            ends = (LabEvent.STOPPED, LabEvent.EXPIRED, LabEvent.FAILED)
            for news in reversed((await self.news(user)).items):
                if news.event in ends:
                    return f"lab {news.lab_id} {news.event.value}{f' ({news.reason})' if news.reason else ''}"
        return "no lab"


class _Look(Wait[LabView]):
    """Observes the lab of one user."""

    def __init__(
        self, labs: Labs, user: str, on_change: Callable[[LabView], None] | None, generation: int | None
    ) -> None:
        super().__init__(on_change)
        self._labs, self._user, self._first = labs, user, generation

    async def now(self) -> LabView | None:
        """Return the current lab; None: there is none."""
        try:
            view = await self._read_state(lambda: self._labs.get(self._user))
        except NotFound:
            return None
        if self._first is None:
            self._first = view.generation
        return view

    def is_another(self, view: LabView) -> bool:
        """Return whether it is not the lab that is waited for."""
        return view.generation != self._first
