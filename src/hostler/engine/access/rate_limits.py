"""Limits of requests, kept in memory, per replica: budgets of accounts and addresses, and the login throttle.

Administrators with membership everywhere have no budget (the server does not check it): they can always disable an
account. For an administrator of some orgs, writes to accounts are counted separately from its other writes.

The login throttle delays each further try after many failures. It remembers a bounded number of names, and forgets
failures over time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import OverBudget, TooManyTries
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


MOST = 60.0
"""The longest wait, and the time after which one failure is forgotten."""


class Slowing:
    """Counts failures by name. The first `free` cost nothing; then each try waits twice as long as the one before.

    A try is counted when it begins, so that many concurrent tries do not bypass the limit. Names beyond `capacity`
    replace those with the oldest failures.
    """

    def __init__(self, what: str, *, clock: Clock, free: int, first: float = 1.0, capacity: int = 10_000) -> None:
        self._what, self._clock, self._free, self._first, self._capacity = what, clock, free, first, capacity
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()  # number of failures, and their time

    def __len__(self) -> int:
        return len(self._failures)

    def wait(self, name: str) -> float:
        """Return the seconds until the next try is allowed; 0.0: now."""
        now = self._clock.now()
        failed, at = self._failures.get(name, (0, now))
        over = _left(failed, now - at) - self._free
        if over < 0:
            return 0.0
        # The exponent is bounded: a float would overflow after many failures.
        return max(0.0, at + min(MOST, self._first * 2.0 ** min(over, 16)) - now)

    def begin(self, name: str) -> None:
        """Count a try. TooManyTries: it must wait, and is not counted."""
        self.check(name)
        self.record_failure(name)

    def check(self, name: str) -> None:
        """Raise TooManyTries if a try must wait."""
        after = self.wait(name)
        if after > 0:
            raise TooManyTries(f"{self._what}: too many tries have failed; try again in {after:.0f} s", after)

    def record_failure(self, name: str) -> None:
        now = self._clock.now()
        failed, at = self._failures.pop(name, (0, now))
        self._failures[name] = (_left(failed, now - at) + 1, now)
        if len(self._failures) > self._capacity:
            self._failures.popitem(last=False)

    def take_back(self, name: str) -> None:
        """Undo the last count: the try succeeded, or could not be made."""
        failed, at = self._failures.get(name, (0, 0.0))
        if failed > 1:
            self._failures[name] = (failed - 1, at)
        else:
            self.forget(name)

    def forget(self, name: str) -> None:
        """Reset the count."""
        self._failures.pop(name, None)


def _left(failed: int, since: float) -> int:
    return max(0, failed - int(since // MOST))
