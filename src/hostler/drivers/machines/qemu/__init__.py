"""Machines that are QEMU processes, each with its own folder, which the next agent process finds again.

descriptor        what the rest of Hostler knows of this driver; `examination` the checks of `hostler doctor`
driver            the verbs; `create`, `power`, `snapshot` and `retaining` implement them
machine           one machine: its record, and the connection to its process
node_context      objects that the machines of a node share, and the options of the driver

state             the file with the record of a machine; `folder` the folders of a node
process           a machine's process: started with least `privileges`, found again (`pid_lookup`), ended;
                  `dead_mans_switch` kills it when its hold expires
command           its command line; `qmp` the protocol with QEMU, `serial` the guest's output
disk              operations of `qemu-img` on its disk
network           how it is reached: `bridge` (`default_bridge`), `firewall`
images            images of machines; `acceleration` KVM or TCG, `saved_state` for a faster start
migration         moves to another node: `outgoing`, `send`, `incoming`

Shared with other drivers, in the package above: `channel`, `readiness`, `seed`, `validation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.kit.lazy_import import importing

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.driver import QemuMachines
    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.drivers.machines.qemu.node_context import QemuOptions

# The descriptor of the driver is imported often, and the driver only where it is used.
__getattr__ = importing(
    __name__,
    {
        "ImageFolder": "images.folder",
        "QemuMachines": "driver",
        "QemuOptions": "node_context",
    },
)

__all__ = ["ImageFolder", "QemuMachines", "QemuOptions"]
