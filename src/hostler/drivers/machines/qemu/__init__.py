"""Machines that are QEMU processes, each with its own folder, which the next agent process finds again.

descriptor        what the rest of Hostler knows of this driver; `examination` the checks of `hostler doctor`,
                  `first_image` the image that the first start builds
driver            the verbs; `create`, `power`, `snapshot` and `retaining` implement them
machine           one machine: its record, and the connection to its process; `status` derives its state
node_context      objects that the machines of a node share; `options` the settings

state             the file with the record of a machine; `folder` the folders of a node, `load` reads them
process           a machine's process: started with least `privileges` in a `cgroup`, found again (`pid_lookup`), ended;
                  `dead_mans_switch` kills it when its hold expires
command           its command line; `qmp` the protocol with QEMU, `serial` the guest's output, `channel` its connections
disk              operations of `qemu-img` on its disk; `shielded` runs steps that must not be cancelled half way
identity          identity of a machine, which its `seed` passes to the guest
network           how it is reached: `bridge` (`default_bridge`, `rtnetlink`), `firewall`
readiness         progress of a running machine until its user can log in
images            images of machines; `acceleration` KVM or TCG, `saved_state` and `template` for a faster start
migration         moves to another node: `outgoing`, `send`, `incoming`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.kit.lazy_import import importing

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.driver import QemuMachines
    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.drivers.machines.qemu.options import QemuOptions

# The descriptor of the driver is imported often, and the driver only where it is used.
__getattr__ = importing(
    __name__,
    {
        "ImageFolder": "images.folder",
        "QemuMachines": "driver",
        "QemuOptions": "options",
    },
)

__all__ = ["ImageFolder", "QemuMachines", "QemuOptions"]
