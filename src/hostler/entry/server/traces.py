"""Routes of decisions: what was decided, linked to its causes, and why an object is in its state."""

from __future__ import annotations

from hostler.engine.decision_history import STEPS
from hostler.entry.server.route import AFTER, LIMIT, Access, Answer, Asked, Parameter, Route
from hostler.model.trace_api import TracePage, WhyView

OBJECT = Parameter(
    "object",
    "The object: `vm/ORG/PROJECT/NAME`, `node/NAME`, `rack/NAME`, `lab/USER`, `workload/NAME[/NUMBER]`,"
    " `blueprint/NAME`, `slice/GROUP:NAME`; or an id or a name that only one of them has.",
    example="node/r1-b2",
)


async def listed(asked: Asked) -> Answer:
    page = await asked.services.traces.list(
        asked.caller, text=asked.query["object"], limit=asked.limit, after=asked.after
    )
    return Answer(page)


async def why(asked: Asked) -> Answer:
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
        summary="Decisions and user requests with their causes, newest first",
        about="Only entries about your projects and about nodes, unless you belong everywhere. A page may be short or"
        " empty without being the last.",
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
        summary="Why an object is in its state: each step with its cause, newest first",
        handler=why,
        access=Access.LOGGED_IN,
        answer=WhyView,
        query=(
            OBJECT,
            Parameter("org", "The org in which a machine name is looked up first; requires `project`."),
            Parameter("project", "The project in which a machine name is looked up first; requires `org`."),
            Parameter("limit", "Most steps to return.", "integer", minimum=1, maximum=1000, default=STEPS),
        ),
        errors=(400, 404, 409),
    ),
)
