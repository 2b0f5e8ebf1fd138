"""Conformance suite of the lab queues and records: what a driver must do, one claim at a time.

    from hostler.testing import check_inbox

    async def test_my_driver_is_a_lab_front_end():
        await check_inbox(MyFrontEnd)

`MyFrontEnd()` is a `LabFrontEnd`: an async context manager around private queues and records, initially empty, with the
actions of the front end. `drivers` has those of our drivers.
"""

from __future__ import annotations

from hostler.testing.inbox.claim import InboxClaim, InboxTrial, LabFrontEnd, check_inbox, inbox_claims

__all__ = ["InboxClaim", "InboxTrial", "LabFrontEnd", "check_inbox", "inbox_claims"]
