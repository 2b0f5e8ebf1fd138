"""Blueprints, their slices and endpoints, and the artifacts of slices."""

from __future__ import annotations

from hostler.model.blueprint_api import (
    BlueprintDocument,
    BlueprintFile,
    BlueprintHistory,
    BlueprintPage,
    BlueprintPlan,
    BlueprintRead,
    BlueprintRollback,
    BlueprintStatus,
    BlueprintView,
    RevisionView,
    RolloutPromotion,
    RolloutSelection,
)
from hostler.model.resources.operation import AFTER, LIMIT, STALE, Access, Kind, Operation, Parameter, reads, writes
from hostler.model.slice_api import ArtifactPage, ArtifactView, BlueprintCalls, EndpointPage, SliceLog, SlicePage

_NODE = Parameter("node", "Only on this node.")
_ARTIFACT = Parameter(
    "artifact", "Only of this artifact (group:name:version), or of all versions of a slice (group:name).", example="a:b"
)
_SINCE = Parameter("since", "Only seconds from this instant on.", pattern=r"^[0-9]{1,12}(\.[0-9]{1,6})?$", example="0")
_INSTANCE = Parameter("instance", "Only of the instance with this number.", "integer", minimum=1, maximum=2**53)
_LOG_NODE = Parameter("node", "Only of an instance that is or was on this node.")
_LINES = Parameter("lines", "The number of last lines.", "integer", minimum=0, maximum=10_000, default=100)
_LOG_AFTER = Parameter(
    "after",
    "Instead of `lines`: the output after an earlier answer, given by its `after`.",
    pattern=r"^[0-9.]{1,40}$",
    example="0.0",
)
_FILE_NAME = Parameter(
    "name",
    "The file name: of a wheel, or of a module.",
    pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+-]{0,250}\.(whl|py)$",
    example="greeting-1.0.0-py3-none-any.whl",
)
_BLUEPRINT = Kind(
    name="blueprint", path="/v1/blueprints", view=BlueprintView, page=BlueprintPage, writers=Access.DEPLOYERS
)


def _order(verb: str, summary: str, about: str) -> Operation[BlueprintStatus]:
    """Return a command for rollouts in progress."""
    return writes(
        f"POST {_BLUEPRINT.one}/{verb}",
        f"blueprint.{verb}",
        summary,
        BlueprintStatus,
        Access.DEPLOYERS,
        body=RolloutPromotion if verb == "promote" else RolloutSelection,
        body_optional=True,
        about=f"{about} 409: it is not possible now, or the rollout has changed since `seen`.",
    )


class BlueprintApi:
    """Blueprints, their rollouts, slices and endpoints."""

    list = _BLUEPRINT.list("All blueprints, in order of their names")
    get = _BLUEPRINT.get("A blueprint: its spec and a one-word status")
    status = _BLUEPRINT.look(
        "status",
        "The status of a blueprint by slice: versions, states, nodes, and why something waits or failed",
        BlueprintStatus,
        query=(STALE,),
        about="Also for a deleted blueprint, until the last of its slices is gone.",
    )
    calls = _BLUEPRINT.look(
        "calls",
        "Call measurements of its slices in the last minutes, by version and second",
        BlueprintCalls,
        query=(_SINCE,),
        about="Collected from the routers on demand; nothing is stored. Empty in a simulation.",
    )
    history = _BLUEPRINT.look(
        "history",
        "Applied revisions, newest first",
        BlueprintHistory,
        query=(LIMIT, AFTER),
        about="Also for a deleted blueprint.",
    )
    revision = reads(
        "blueprint.revision",
        f"{_BLUEPRINT.one}/history/{{number}}",
        "One revision of a blueprint, complete",
        RevisionView,
    )
    read = writes(
        "POST /v1/blueprint-files",
        "blueprint.read",
        "Parse a blueprint file, JSON or TOML: its content, and its errors with path and line",
        BlueprintRead,
        Access.DEPLOYERS,
        body=BlueprintFile,
        idempotent=False,
        about="Nothing is written. The returned content can be planned and applied if `faults` is empty.",
    )
    plan = writes(
        f"POST {_BLUEPRINT.one}/plan",
        "blueprint.plan",
        "What an apply would load, unload and move, and where; the blueprint need not exist yet",
        BlueprintPlan,
        Access.DEPLOYERS,
        body=BlueprintDocument,
        idempotent=False,
        about="Nothing is written. Nodes are those that would be chosen now. `refused` lists the reasons against it.",
    )
    apply = _BLUEPRINT.apply(
        "Create or change a blueprint; the same content again changes nothing",
        BlueprintDocument,
        about="All or nothing. 201: it is new. 404: an artifact is not in the repository. 409: a slice belongs to"
        " another blueprint, or one that is left out is needed by another. A failed version is tried again.",
    )
    rollback = _BLUEPRINT.act(
        "rollback",
        "Restore an earlier revision: the last that differs, or the revision `to`",
        also=(201,),
        body=BlueprintRollback,
        body_optional=True,
        about="It is an apply that always uses the rolling strategy. 201: the blueprint had been deleted.",
    )
    promote = _order(
        "promote",
        "Promote rollouts in progress to the next stage now, or to completion",
        "The leader executes it without waiting for the stage's time and approval. While the measurements exceed the"
        " limits of the gate it refuses, and `refused` says why, unless `force` is set. `promote` in `ordered`: it is"
        " not executed yet.",
    )
    pause = _order(
        "pause",
        "Pause rollouts in progress",
        "No share of the calls grows, and no old instance is replaced. A gate that fails still rolls the new version"
        " back.",
    )
    resume = _order("resume", "Resume paused rollouts", "They continue where they were paused.")
    approve = _order(
        "approve",
        "Approve the current stage of rollouts whose strategy requires manual approval",
        "The stage ends after its time, if its gate passes.",
    )
    abort = _order(
        "abort",
        "Abort rollouts in progress: roll the new version back to the previous one",
        "The blueprint does not change, and its slice is marked failed; an apply tries again.",
    )
    delete = _BLUEPRINT.delete(
        "Delete a blueprint and its slices; they are gone once its status is not found",
        status=202,
        about="Its history stays. 409: a slice of it is needed by another blueprint.",
    )
    slices = reads(
        "slice.list",
        "/v1/slices",
        "Slices on the nodes, in order of node and artifact",
        SlicePage,
        query=(_NODE, _ARTIFACT, LIMIT, AFTER),
    )
    log = reads(
        "slice.log",
        "/v1/slices/{artifact}/log",
        "The last output of an instance of a slice, across restarts",
        SliceLog,
        costly=True,
        access=Access.DEPLOYERS,
        query=(_LOG_NODE, _INSTANCE, _LINES, _LOG_AFTER),
        about="`artifact` is group:name:version, or group:name for any version. Of several instances, an unhealthy one"
        " is preferred, else the first; if none is left, the last one that failed. At most 256 KiB, and 4096"
        " characters per line. 503: the node is unreachable.",
    )
    endpoints = reads(
        "endpoint.list",
        "/v1/endpoints",
        "Where methods of slices can be called, in order of artifact, method and instance",
        EndpointPage,
        query=(_ARTIFACT, LIMIT, AFTER),
    )


class ArtifactApi:
    """The artifacts of slices."""

    _artifact = Kind(
        name="artifact", path="/v1/artifacts", view=ArtifactView, page=ArtifactPage, writers=Access.DEPLOYERS
    )

    list = _artifact.list("All artifacts of the repository, in order of group, name and version", query=(LIMIT, AFTER))
    get = _artifact.get("An artifact: its file, the file's checksum, and its dependencies", query=())
    file: Operation[ArtifactView] = reads(
        "artifact.file",
        f"{_artifact.one}/file",
        "The file of an artifact",
        None,
        media="application/octet-stream",
    )
    publish = writes(
        f"PUT {_artifact.one}/file",
        "artifact.publish",
        "Publish an artifact: a pure Python wheel, or a module",
        ArtifactView,
        Access.DEPLOYERS,
        also=(201,),
        query=(_FILE_NAME,),
        idempotent=False,
        streamed=True,
        about="The body is the file, at most 64 MiB. 201: it is new. 200: the same file was published before. 409:"
        " another file is published under that name; a published file is never replaced.",
    )
