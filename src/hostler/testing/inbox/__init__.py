"""The conformance suite of the lab door: what a driver of its queues and records must do, one claim at a time.

    from hostler.testing import check_inbox

    async def test_my_driver_is_a_lab_door():
        await check_inbox(MyDoor)

`MyDoor()` is a `LabDoor`: an async context manager around a door of its own, empty at first, with what the front end
does to it. `doors` has those of our drivers.
"""

from __future__ import annotations

from hostler.testing.inbox.claim import InboxClaim, InboxTrial, LabDoor, check_inbox, inbox_claims

__all__ = ["InboxClaim", "InboxTrial", "LabDoor", "check_inbox", "inbox_claims"]
