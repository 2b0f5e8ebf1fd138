"""The routes of decisions: what happened, linked to what led to it, and why something is as it is."""

from __future__ import annotations

from hostler.engine.decision_history import STEPS
from hostler.entry.server.route import AFTER, LIMIT, Access, Answer, Asked, Parameter, Route
from hostler.model.trace_api import TracePage, WhyView

OBJECT = Parameter(
    "object",
    "What it is about: `vm/ORG/PROJECT/NAME`, `node/NAME`, `rack/NAME`, `lab/USER`, `workload/NAME[/NUMBER]`,"
    " `blueprint/NAME`, `slice/GROUP:NAME`; or an id,"
    " or a name, that only one of them has.",
    example="node/r1-b2",
)


async def listed(asked: Asked) -> Answer:
    """What happened."""
    page = await asked.services.traces.list(
        asked.caller, text=asked.query["object"], limit=asked.limit, after=asked.after
    )
    return Answer(page)


async def why(asked: Asked) -> Answer:
    """How it came to be as it is."""
    org, project = asked.query["org"], asked.query["project"]
    found = await asked.services.traces.why(
        asked.caller, asked.query["object"] or "", org=org, project=project, limit=asked.limit
    )
    return Answer(found)


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/traces",
        name="trace.list",
        is_long=True,
        summary="What was decided and wished for, newest first, each with what led to it",
        about="Only what is about your projects, and about nodes, unless you belong everywhere. A page may be short, or"
        " empty, and not be the last.",
        handler=listed,
        access=Access.LOGGED_IN,
        answer=TracePage,
        query=(LIMIT, AFTER, OBJECT),
        errors=(400, 404, 409),
    ),
    Route(
        method="GET",
        path="/v1/why",
        name="trace.why",
        is_long=True,
        summary="How an object came to be as it is: each step, and what led to it, newest first",
        handler=why,
        access=Access.LOGGED_IN,
        answer=WhyView,
        query=(
            OBJECT,
            Parameter("org", "Where a machine is looked for first of which only the name is given; needs `project`."),
            Parameter("project", "The same; needs `org`."),
            Parameter("limit", "How many steps at most.", "integer", minimum=1, maximum=1000, default=STEPS),
        ),
        errors=(400, 404, 409),
    ),
)
