"""Elections: `sysvvm/…`. The first number tells what is kept, the second which election key it is for, from 1.

Beside them, of our own: the replicas that run, who led when, and what the demonstration service counts.
"""

from __future__ import annotations

from hostler.keys.key import Key
from hostler.model.replica import LeaderRecord, ReplicaRecord, Takeover, Tally

LEADER = Key("sysvvm/1/{n:int}", LeaderRecord)
"""Expires unless it is renewed."""
FENCE = Key("sysvvm/2/{n:int}", int)
"""The highest fence that was ever given out; only grows, never deleted."""
REPLICA = Key("/hostler/v1/replicas/{holder}", ReplicaRecord)
"""Attached to a lease of the replica's own."""
TAKEOVER = Key("/hostler/v1/takeovers/{fence:int}", Takeover)
"""The last leaderships of key 1, each under its fence."""
DEMONSTRATION = Key("/hostler/v1/demonstration", Tally)
