"""Conformance suite of the lab queues and records: what a driver must do, one claim at a time.

    from hostler.testing import check_inbox

    async def test_my_driver_is_a_lab_door():
        await check_inbox(MyDoor)

`MyDoor()` is a `LabDoor`: an async context manager around private queues and records, initially empty, with the actions
of the front end. `drivers` has those of our drivers.
"""

from __future__ import annotations

from hostler.testing.inbox.claim import InboxClaim, InboxTrial, LabDoor, check_inbox, inbox_claims

__all__ = ["InboxClaim", "InboxTrial", "LabDoor", "check_inbox", "inbox_claims"]
