"""Virtual machines, retained machines, workloads, and labs."""

from __future__ import annotations

from hostler.model.lab_api import LabAnswer, LabExtend, LabMessage, LabNewsPage, LabOffers, LabPage, LabStart, LabView
from hostler.model.resources.operation import AFTER, LIMIT, STALE, Access, Kind, Parameter, reads, writes
from hostler.model.vm_api import (
    ImageList,
    MoveRequest,
    RetainedPage,
    RetainedRestore,
    RetainedView,
    SnapshotRequest,
    TerminalKey,
    TicketRequest,
    TicketView,
    VmCreate,
    VmLog,
    VmPage,
    VmRowPage,
    VmUpdate,
    VmView,
    Why,
)
from hostler.model.workload_api import InstancePage, WorkloadApply, WorkloadPage, WorkloadScale, WorkloadView

_LABELS = Parameter(
    "labels",
    "Only those with all of these labels.",
    pattern=r"^[^=,]+=[^,]*(,[^=,]+=[^,]*)*$",
    example="tier=web,zone=a",
)
_BRIEF = Parameter("brief", "Short rows (`VmRow`), for long lists.", "boolean", default=False)
_TAIL = Parameter("tail", "Most bytes, from the end.", "integer", minimum=1, maximum=256 * 1024, default=64 * 1024)


class VmApi:
    """Virtual machines."""

    _vm = Kind(
        name="vm",
        path="/v1/orgs/{org}/projects/{project}/vms",
        view=VmView,
        page=VmPage,
        readers=Access.PROJECT,
        writers="modify_workloads",
        key="id",
    )
    _filters = (LIMIT, AFTER, _LABELS, STALE, _BRIEF)

    get = _vm.get("A virtual machine, by its id or its name")
    list = _vm.list("The virtual machines of a project", brief=VmRowPage, query=_filters)
    list_all = reads(
        "vm.list_all",
        "/v1/vms",
        "All virtual machines that the caller sees",
        VmPage,
        brief=VmRowPage,
        query=_filters,
    )
    images = reads("image.list", "/v1/images", "Images that nodes in service have", ImageList)
    create = _vm.create("Create a virtual machine", VmCreate)
    update = _vm.update("Change a virtual machine; omitted fields stay", VmUpdate)
    delete = _vm.delete("Delete a virtual machine; it is gone once it is not found", status=202)
    start = _vm.act("start", "Start it")
    stop = _vm.act("stop", "Shut it down")
    reset = _vm.act("reset", "Reset it, as with the reset button")
    move = _vm.act("move", "Move it to another node, live if possible", status=202, body=MoveRequest)
    snapshot = _vm.act("snapshot", "Take a snapshot", body=SnapshotRequest)
    restore = _vm.act("restore", "Restore a snapshot; the machine is stopped for that", body=SnapshotRequest)
    drop_snapshot = writes(
        f"DELETE {_vm.one}/snapshots/{{name}}",
        "vm.drop_snapshot",
        "Delete a snapshot",
        VmView,
        "modify_workloads",
        conditional=True,
    )
    why = _vm.look("why", "Why it is on its node, or on none: node by node", Why, is_long=True)


class VmChannelApi:
    """What reaches into a machine."""

    ticket = writes(
        "POST /v1/orgs/{org}/projects/{project}/vms/{vm}/tickets",
        "vm.ticket",
        "Issue a ticket for one channel of a machine, valid once, within 30 s",
        TicketView,
        "modify_workloads",
        status=201,
        body=TicketRequest,
        idempotent=False,
        about="The channel closes when the token ends that the ticket was requested with.",
    )
    log = reads(
        "vm.log",
        "/v1/orgs/{org}/projects/{project}/vms/{vm}/log",
        "The last output of its serial port",
        VmLog,
        costly=True,
        access="modify_workloads",
        query=(_TAIL,),
        about="Also for a machine that is off. The content is not trusted: show it as text.",
    )


class TerminalApi:
    """The key of terminals."""

    key = reads(
        "terminal.key",
        "/v1/terminal-key",
        "The public SSH key with which the server logs in to open a shell",
        TerminalKey,
    )


class RetainedApi:
    """Retained machines."""

    _ONE = "/v1/retained/{node}/{name}"

    list = reads(
        "retained.list",
        "/v1/retained",
        "Retained machines: out of service, kept with their disks",
        RetainedPage,
    )
    get = reads("retained.get", _ONE, "A retained machine", RetainedView)
    restore = writes(
        f"POST {_ONE}/restore",
        "retained.restore",
        "Restore a virtual machine with its retained disk, or create a new one from it",
        VmView,
        "modify_workloads",
        body=RetainedRestore,
        body_optional=True,
        status=201,
        also=(202,),
    )
    delete = writes(
        f"DELETE {_ONE}",
        "retained.delete",
        "Delete a retained machine with its disk and snapshots, for good",
        RetainedView,
        "manage_accounts",
        status=202,
    )


class WorkloadApi:
    """Workloads: a number of identical machines."""

    _workload = Kind(
        name="workload",
        path="/v1/workloads",
        view=WorkloadView,
        page=WorkloadPage,
        writers="modify_workloads",
        about="Only workloads whose project the caller sees; others are not found.",
    )

    list = _workload.list("All workloads that the caller sees, in order of their names")
    get = _workload.get("A workload and its status")
    instances = _workload.look(
        "instances",
        "The instances of a workload, in order of their numbers: spec and status",
        InstancePage,
        query=(LIMIT, AFTER, STALE),
    )
    apply = _workload.apply(
        "Create or change a workload; the same content again changes nothing",
        WorkloadApply,
        about="201: it is new. A change of spec, affinity or node labels replaces instances, within the"
        " limits of the rollout; other changes apply in place. 409: its name is taken, it is being deleted, or its"
        " machines would have to change their project.",
    )
    scale = _workload.update(
        "Change the number of instances, or start or stop them; omitted fields stay",
        WorkloadScale,
        name="workload.scale",
    )
    delete = _workload.delete("Delete a workload and its machines; it is gone once it is not found", status=202)


_LAB_SEEN = "Only users whose project `labs/{user}` the caller sees; others appear to have no lab."
LAB_USED = (
    "For the user of the lab, by the membership `labs/{user}`, and for accounts that see that project and have the"
    " right"
    " modify_workloads."
)
_LED = "For accounts that see `labs/{user}` and have the right modify_workloads."
_LAB_ID = Parameter("labId", "Only if it is this lab.", "integer", minimum=1, maximum=2**31 - 1)


class LabApi:
    """Labs: the operations of the queues in Redis, with an answer. One lab for each user."""

    _ONE = "/v1/labs/{user}"

    list = reads(
        "lab.list",
        "/v1/labs",
        "All labs that the caller sees, in order of their users",
        LabPage,
        query=(LIMIT, AFTER, STALE),
        about=_LAB_SEEN,
    )
    start = writes(
        "POST /v1/labs",
        "lab.start",
        "Start a lab for a user",
        LabAnswer,
        Access.LOGGED_IN,
        status=202,
        also=(200,),
        body=LabStart,
        errors=(403, 404),
        about=f"{LAB_USED} 202: the lab was requested. 200: it exists already. 409: the lab rules do not allow"
        " it, for example a lab that is not in the catalogue, or while another one runs.",
    )
    get = reads("lab.get", _ONE, "A user's lab", LabView, query=(STALE,), about=_LAB_SEEN)
    stop = writes(
        f"DELETE {_ONE}",
        "lab.stop",
        "Stop a user's lab; it is gone once it is not found",
        LabAnswer,
        Access.LOGGED_IN,
        status=202,
        also=(200,),
        query=(_LAB_ID,),
        conditional=True,
        errors=(403,),
        about=f"{LAB_USED} 202: its machine is being deleted. 200: it is gone, or already stopping."
        " 409: another lab runs.",
    )
    extend = writes(
        f"POST {_ONE}/extend",
        "lab.extend",
        "Extend a user's lab",
        LabAnswer,
        Access.LOGGED_IN,
        body=LabExtend,
        conditional=True,
        errors=(403,),
        about=f"{_LED} 409: it is waiting or stopping.",
    )
    message = writes(
        f"POST {_ONE}/message",
        "lab.message",
        "Send a message to the user of a lab",
        LabAnswer,
        Access.LOGGED_IN,
        body=LabMessage,
        conditional=True,
        errors=(403,),
        about=f"{_LED} One line of 1 to 500 characters. It appears in the events of the lab and in its terminal.",
    )
    news = reads(
        "lab.events",
        f"{_ONE}/events",
        "The last events of a user's labs, oldest first",
        LabNewsPage,
        about=_LAB_SEEN,
    )
    offers = reads(
        "lab.catalogue",
        "/v1/lab-catalogue",
        "The lab catalogue, with the number of running, waiting and pre-started labs",
        LabOffers,
        errors=(403,),
    )


class LabTerminalApi:
    """The terminal of a lab."""

    ticket = writes(
        "POST /v1/labs/{user}/tickets",
        "lab.ticket",
        "Issue a ticket that opens the terminal of a user's lab, once, within 30 s",
        TicketView,
        Access.LOGGED_IN,
        status=201,
        idempotent=False,
        errors=(403,),
        about=f"{LAB_USED} The terminal closes when the token ends that the ticket was requested with.",
    )
