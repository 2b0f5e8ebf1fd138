"""The control plane itself, the decision log, and the simulation."""

from __future__ import annotations

from hostler.model.access_api import AuditPage
from hostler.model.control_api import LeaderView, Overview, ReplicaPage, TracePage, WhyView
from hostler.model.resources.operation import AFTER, LIMIT, Access, Parameter, reads, writes
from hostler.model.sim_api import (
    FaultInject,
    FaultKindPage,
    FaultView,
    HardwareCommand,
    HardwareCommandView,
    ModeSet,
    ProposalPage,
    ProposalView,
    RepairMode,
    SimLogPage,
    SimState,
    SimView,
    StepGrant,
    StepView,
)

_DAY = Parameter("day", "Only of this day.", pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", example="2026-11-15")
_OBJECT = Parameter(
    "object",
    "The object: `vm/ORG/PROJECT/NAME`, `node/NAME`, `rack/NAME`, `lab/USER`, `workload/NAME[/NUMBER]`,"
    " `blueprint/NAME`, `slice/GROUP:NAME`; or an id or a name that only one of them has.",
    example="node/r1-b2",
)
_NUMBER = Parameter("after", "Entries after the one of this number.", pattern=r"^[0-9]{1,15}$", example="41")


class ControlApi:
    """Leader, replicas, audit log, overview."""

    leader = reads("control.leader", "/v1/leader", "The leader", LeaderView)
    replicas = reads("control.replicas", "/v1/replicas", "The running replicas", ReplicaPage)
    audit = reads(
        "control.audit",
        "/v1/audit",
        "The audit log: every write with its account, subject and revisions",
        AuditPage,
        is_long=True,
        about="Only entries about your projects and accounts, unless you belong everywhere. A page may"
        " be short or empty without being the last.",
        access="manage_accounts",
        query=(
            LIMIT,
            AFTER,
            _DAY,
            Parameter("newest", "Newest first; default: oldest first.", "boolean", default=False),
            Parameter("who", "Only by this account."),
            Parameter("verb", "Only this verb: `vm.create`, or a prefix: `vm.`.", example="vm."),
            Parameter("subject", "Only subjects whose key or name contains this."),
        ),
        errors=(400,),
    )
    overview = reads(
        "control.overview",
        "/v1/overview",
        "Overview: leader, store, nodes, machines, labs, deployments, and what needs attention",
        Overview,
        about="Counts only machines and labs that the caller sees. Answered from memory, also while the store does not"
        " answer; the answer then says so.",
    )


class TraceApi:
    """Decisions: what was decided, linked to its causes, and why an object is in its state."""

    list = reads(
        "trace.list",
        "/v1/decisions",
        "Decisions and user requests with their causes, newest first",
        TracePage,
        former=("/v1/traces",),
        is_long=True,
        about="Only entries about your projects and about nodes, unless you belong everywhere. A page may be short or"
        " empty without being the last.",
        query=(LIMIT, AFTER, _OBJECT),
        errors=(400, 404, 409),
    )
    why = reads(
        "trace.why",
        "/v1/why",
        "Why an object is in its state: each step with its cause, newest first",
        WhyView,
        is_long=True,
        query=(
            _OBJECT,
            Parameter("org", "The org in which a machine name is looked up first; requires `project`."),
            Parameter("project", "The project in which a machine name is looked up first; requires `org`."),
            Parameter("limit", "Most steps to return.", "integer", minimum=1, maximum=1000, default=20),
        ),
        errors=(400, 404, 409),
    )


class SimApi:
    """Control of time, faults and repairs. Servers that are not a simulation answer 404."""

    get = reads(
        "sim.get",
        "/v1/sim",
        "The simulation: its clock, active faults, and proposed repairs",
        SimView,
        errors=(404,),
        about="404: this server is not a simulation.",
    )
    mode = writes(
        "PUT /v1/sim/mode",
        "sim.mode",
        "Set the mode: paused, real time, or as fast as possible",
        SimView,
        "step_time",
        body=ModeSet,
        errors=(404,),
        idempotent=False,
        about="409: the epoch has ended. Every change of mode starts a new epoch and drops the pending steps.",
    )
    step = writes(
        "POST /v1/sim/step",
        "sim.step",
        "Advance time by a number of seconds, or by a number of scheduled instants",
        StepView,
        "step_time",
        also=(202,),
        body=StepGrant,
        errors=(404,),
        idempotent=False,
        about="Steps are executed one after the other and completely, even if the client does not wait. 202: it is"
        " still in progress while `steps` lists it. 409: time runs by itself, or the mode was changed in the meantime.",
    )
    state = reads(
        "sim.state",
        "/v1/sim/state",
        "The simulation as a file for hostler sim serve --resume",
        SimState,
        access=Access.ADMINISTRATORS,
        errors=(404,),
        about="400: the API wrote more into the simulation than can be saved.",
    )
    kinds = reads(
        "sim.kinds",
        "/v1/sim/faults",
        "Kinds of faults, and the components they apply to",
        FaultKindPage,
        errors=(404,),
    )
    inject = writes(
        "POST /v1/sim/faults",
        "sim.inject",
        "Inject a fault",
        FaultView,
        "inject_faults",
        status=201,
        body=FaultInject,
        errors=(404,),
        idempotent=False,
        about="404: component not found.",
    )
    lift = writes(
        "DELETE /v1/sim/faults/{fault}",
        "sim.lift",
        "Remove a fault",
        FaultView,
        "inject_faults",
        idempotent=False,
    )
    command = writes(
        "POST /v1/sim/commands",
        "sim.command",
        "Switch a blade, a port, a cable or a rack on or off",
        HardwareCommandView,
        "perform_repairs",
        body=HardwareCommand,
        errors=(404,),
        idempotent=False,
        about="409: the component has changed since `guard`, the instant of the state that the command is based"
        " on. 404: component not found.",
    )
    proposals = reads(
        "sim.proposals",
        "/v1/sim/proposals",
        "Proposed repairs of faulty hardware, with reasons",
        ProposalPage,
        errors=(404,),
    )
    auto_repair = writes(
        "PUT /v1/sim/repairs",
        "sim.auto_repair",
        "Turn automatic repairs on or off",
        ProposalPage,
        "perform_repairs",
        body=RepairMode,
        errors=(404,),
        idempotent=False,
        about="Repairs that need a human stay proposals.",
    )
    repair = writes(
        "POST /v1/sim/repairs/{proposal}",
        "sim.repair",
        "Perform a proposed repair, also one that needs a human",
        ProposalView,
        "perform_repairs",
        idempotent=False,
    )
    log = reads(
        "sim.log",
        "/v1/sim/log",
        "The log of the simulation, oldest first",
        SimLogPage,
        errors=(404,),
        query=(LIMIT, _NUMBER, Parameter("last", "The newest entries.", "boolean", default=False)),
    )
