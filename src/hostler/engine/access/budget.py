"""Budgets: how many requests and writes an account may make, and how many requests an address without an account.

Kept in memory, per replica. Administrators with membership everywhere have no budget (the server does not check it):
they can always disable an account. For an administrator of some orgs, writes to accounts are counted separately from
its other writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.errors import OverBudget
from hostler.kit.connections import origin
from hostler.kit.rate_limit import TokenBuckets

if TYPE_CHECKING:
    from hostler.engine.request import Caller
    from hostler.kit.clock import Clock


class BudgetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Rates per second, and burst sizes. A rate of 0: no limit."""

    request_rate: float = 500.0
    request_burst: float = 5000.0
    write_rate: float = 20.0
    write_burst: float = 200.0
    address_rate: float = 200.0
    address_burst: float = 2000.0


class Budget:
    """Counts requests against the budgets. One per server."""

    def __init__(self, plan: BudgetConfig, *, clock: Clock) -> None:
        self._requests = TokenBuckets(plan.request_rate, plan.request_burst, now=clock.now)
        self._writes = TokenBuckets(plan.write_rate, plan.write_burst, now=clock.now)
        self._accounts = TokenBuckets(plan.write_rate, plan.write_burst, now=clock.now)
        self._addresses = TokenBuckets(plan.address_rate, plan.address_burst, now=clock.now)

    def spend(self, caller: Caller, *, writes: bool, of_accounts: bool) -> None:
        """Count a request of an account. `of_accounts`: it writes accounts or tokens. OverBudget: it must wait."""
        after = self._requests.take(caller.name)
        if after > 0:
            raise _over(f"account {caller.name}", "requests", self._requests, after, "request_rate")
        if writes:
            buckets = self._accounts if of_accounts and caller.rights.manage_accounts else self._writes
            after = buckets.take(caller.name)
            if after > 0:
                raise _over(f"account {caller.name}", "writes", buckets, after, "write_rate")

    def spend_anonymous(self, source: str) -> None:
        """Count a request without an account. OverBudget: it must wait."""
        after = self._addresses.take(origin(source))
        if after > 0:
            raise _over(f"address {source}", "requests without an account", self._addresses, after, "address_rate")


def _over(who: str, what: str, buckets: TokenBuckets, after: float, setting: str) -> OverBudget:
    allowed = f"more than {buckets.rate:g} {what} a second, or {buckets.burst:g} at once"
    advice = f"wait {max(1, round(after))} s and try again, or ask an administrator to raise {setting}"
    return OverBudget(f"{who}: {allowed}; {advice}", after)
