"""Virtual machines: `/plasmavmc/…`, as the contract spells them."""

from __future__ import annotations

from hostler.keys.key import Key
from hostler.model.vm import LockInfo, VirtualMachine, VmHandle

VM = Key("/plasmavmc/vms/{org}/{project}/{vm}", VirtualMachine)
HANDLE = Key("/plasmavmc/handles/{org}/{project}/{vm}", VmHandle)
LOCK = Key("/plasmavmc/locks/{org}/{project}/{vm}", LockInfo)
"""Attached to a lease: 30 seconds, unless configured otherwise."""
NAME = Key("/hostler/v1/names/{org}/{project}/{name:name}", str)
"""The id of the machine with this name in its project. Written and deleted with the machine's own record."""
