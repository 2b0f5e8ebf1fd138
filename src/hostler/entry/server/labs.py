"""The routes of labs: what the queues in Redis can do, with an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from hostler.entry.server.problem import LAB_REFUSED, Refusal
from hostler.entry.server.response import written
from hostler.entry.server.route import AFTER, LIMIT, STALE, Access, Answer, Asked, Parameter, Route
from hostler.model.lab import LabEvent
from hostler.model.lab_api import LabAnswer, LabExtend, LabMessage, LabNewsPage, LabOffers, LabPage, LabStart, LabView

if TYPE_CHECKING:
    from hostler.engine.request import Written

LABS = "/v1/labs"
ONE = LABS + "/{user}"
LAB_ID = Parameter("labId", "Only if it is this lab.", "integer", minimum=1, maximum=2**31 - 1)
SEEN = "Of users whose project `labs/{user}` the caller sees; others have none."
USED = (
    "For the user whose lab it is, by the membership `labs/{user}`; and for those who see that and have the right"
    " modify_workloads."
)
LED = "For those who see `labs/{user}` and have the right modify_workloads."
_AS_IT_WAS = (LabEvent.ALREADY, LabEvent.STOPPED, LabEvent.EXTENDED, LabEvent.MESSAGE)
"""What is done when it is answered; all else goes on afterwards."""


async def listed(asked: Asked) -> Answer:
    """All that the caller sees."""
    page = await asked.services.labs.list(asked.caller, limit=asked.limit, after=asked.after, stale=asked.stale)
    return Answer(page)


async def shown(asked: Asked) -> Answer:
    """One."""
    return Answer(await asked.services.labs.get(asked.caller, asked.parts["user"], stale=asked.stale))


async def started(asked: Asked) -> Answer:
    """Asked for."""
    user = asked.body.user
    done = await asked.services.labs.start(asked.request, user, asked.body.lab_id)
    return _answered(user, done, location=f"{LABS}/{user}")


async def stopped(asked: Asked) -> Answer:
    """To be gone."""
    user = asked.parts["user"]
    return _answered(user, await asked.services.labs.stop(asked.request, user, asked.query["labId"]))


async def extended(asked: Asked) -> Answer:
    """Lives longer."""
    user, body = asked.parts["user"], asked.body
    lab_id = None if body.lab_id is UNSET else body.lab_id
    return _answered(user, await asked.services.labs.extend(asked.request, user, body.minutes, lab_id))


async def said(asked: Asked) -> Answer:
    """To its user."""
    user = asked.parts["user"]
    return _answered(user, await asked.services.labs.message(asked.request, user, asked.body.text))


async def told(asked: Asked) -> Answer:
    """What happened."""
    return Answer(await asked.services.labs.news(asked.caller, asked.parts["user"]))


async def offered(asked: Asked) -> Answer:
    """The catalogue."""
    return Answer(await asked.services.labs.offers(asked.caller))


def _answered(user: str, done: Written[LabAnswer], *, location: str | None = None) -> Answer:
    """Refusal: the rules do not allow it. That was noted for the user all the same."""
    news = done.value.news
    if news.event in (LabEvent.REFUSED, LabEvent.IGNORED):
        raise Refusal(LAB_REFUSED, f"lab of {user}: {news.reason}")
    answer = written(done, location=location)
    status = 200 if news.event in _AS_IT_WAS else 202
    return Answer(answer.value, answer.headers, status=status)


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path=LABS,
        name="lab.list",
        summary="All labs that the caller sees, in order of their users",
        handler=listed,
        access=Access.LOGGED_IN,
        answer=LabPage,
        query=(LIMIT, AFTER, STALE),
        about=SEEN,
    ),
    Route(
        method="POST",
        path=LABS,
        name="lab.start",
        summary="Start a lab for a user",
        handler=started,
        access=Access.LOGGED_IN,
        status=202,
        also=(200,),
        body=LabStart,
        answer=LabAnswer,
        errors=(403, 404),
        about=f"{USED} 202: it was asked for, and is on its way. 200: it is there already. 409: the rules do not allow"
        " it, such as a lab that is not in the catalogue, or another one that runs.",
    ),
    Route(
        method="GET",
        path=ONE,
        name="lab.get",
        summary="A user's lab",
        handler=shown,
        access=Access.LOGGED_IN,
        answer=LabView,
        query=(STALE,),
        about=SEEN,
    ),
    Route(
        method="DELETE",
        path=ONE,
        name="lab.stop",
        summary="Stop a user's lab; it is gone once it is not found",
        handler=stopped,
        access=Access.LOGGED_IN,
        status=202,
        also=(200,),
        answer=LabAnswer,
        query=(LAB_ID,),
        conditional=True,
        errors=(403,),
        about=f"{USED} 202: its machine goes. 200: it was gone at once, or goes already. 409: another lab is there.",
    ),
    Route(
        method="POST",
        path=ONE + "/extend",
        name="lab.extend",
        summary="Let a user's lab live longer",
        handler=extended,
        access=Access.LOGGED_IN,
        body=LabExtend,
        answer=LabAnswer,
        conditional=True,
        errors=(403,),
        about=f"{LED} 409: it waits for its turn, or stops.",
    ),
    Route(
        method="POST",
        path=ONE + "/message",
        name="lab.message",
        summary="Say something to the user of a lab",
        handler=said,
        access=Access.LOGGED_IN,
        body=LabMessage,
        answer=LabAnswer,
        conditional=True,
        errors=(403,),
        about=f"{LED} One line of 1 to 500 characters. It is among the events of the lab, and shown at its terminal.",
    ),
    Route(
        method="GET",
        path=ONE + "/events",
        name="lab.events",
        summary="What happened to a user's labs last, oldest first",
        handler=told,
        access=Access.LOGGED_IN,
        answer=LabNewsPage,
        about=SEEN,
    ),
    Route(
        method="GET",
        path="/v1/lab-catalogue",
        name="lab.catalogue",
        summary="Which labs there are, and how many run, wait, and are ready ahead",
        handler=offered,
        access=Access.LOGGED_IN,
        answer=LabOffers,
        errors=(403,),
    ),
)
