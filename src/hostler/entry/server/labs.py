"""Routes of labs: the operations of the queues in Redis, with an answer."""

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
SEEN = "Only users whose project `labs/{user}` the caller sees; others appear to have no lab."
USED = (
    "For the user of the lab, by the membership `labs/{user}`, and for accounts that see that project and have the"
    " right"
    " modify_workloads."
)
LED = "For accounts that see `labs/{user}` and have the right modify_workloads."
_AS_IT_WAS = (LabEvent.ALREADY, LabEvent.STOPPED, LabEvent.EXTENDED, LabEvent.MESSAGE)
"""Events that are complete when they are answered; all others continue in the background."""


async def listed(asked: Asked) -> Answer:
    page = await asked.services.labs.list(asked.caller, limit=asked.limit, after=asked.after, stale=asked.stale)
    return Answer(page)


async def shown(asked: Asked) -> Answer:
    return Answer(await asked.services.labs.get(asked.caller, asked.parts["user"], stale=asked.stale))


async def started(asked: Asked) -> Answer:
    user = asked.body.user
    done = await asked.services.labs.start(asked.request, user, asked.body.lab_id)
    return _answered(user, done, location=f"{LABS}/{user}")


async def stopped(asked: Asked) -> Answer:
    user = asked.parts["user"]
    return _answered(user, await asked.services.labs.stop(asked.request, user, asked.query["labId"]))


async def extended(asked: Asked) -> Answer:
    user, body = asked.parts["user"], asked.body
    lab_id = None if body.lab_id is UNSET else body.lab_id
    return _answered(user, await asked.services.labs.extend(asked.request, user, body.minutes, lab_id))


async def said(asked: Asked) -> Answer:
    user = asked.parts["user"]
    return _answered(user, await asked.services.labs.message(asked.request, user, asked.body.text))


async def told(asked: Asked) -> Answer:
    return Answer(await asked.services.labs.news(asked.caller, asked.parts["user"]))


async def offered(asked: Asked) -> Answer:
    return Answer(await asked.services.labs.offers(asked.caller))


def _answered(user: str, done: Written[LabAnswer], *, location: str | None = None) -> Answer:
    """Return the answer. Refusal: the lab rules do not allow the request; the refusal is recorded for the user."""
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
        about=f"{USED} 202: the lab was requested. 200: it exists already. 409: the lab rules do not allow"
        " it, for example a lab that is not in the catalogue, or while another one runs.",
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
        about=f"{USED} 202: its machine is being deleted. 200: it is gone, or already stopping. 409: another lab runs.",
    ),
    Route(
        method="POST",
        path=ONE + "/extend",
        name="lab.extend",
        summary="Extend a user's lab",
        handler=extended,
        access=Access.LOGGED_IN,
        body=LabExtend,
        answer=LabAnswer,
        conditional=True,
        errors=(403,),
        about=f"{LED} 409: it is waiting or stopping.",
    ),
    Route(
        method="POST",
        path=ONE + "/message",
        name="lab.message",
        summary="Send a message to the user of a lab",
        handler=said,
        access=Access.LOGGED_IN,
        body=LabMessage,
        answer=LabAnswer,
        conditional=True,
        errors=(403,),
        about=f"{LED} One line of 1 to 500 characters. It appears in the events of the lab and in its terminal.",
    ),
    Route(
        method="GET",
        path=ONE + "/events",
        name="lab.events",
        summary="The last events of a user's labs, oldest first",
        handler=told,
        access=Access.LOGGED_IN,
        answer=LabNewsPage,
        about=SEEN,
    ),
    Route(
        method="GET",
        path="/v1/lab-catalogue",
        name="lab.catalogue",
        summary="The lab catalogue, with the number of running, waiting and pre-started labs",
        handler=offered,
        access=Access.LOGGED_IN,
        answer=LabOffers,
        errors=(403,),
    ),
)
