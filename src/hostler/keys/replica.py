"""Elections: `sysvvm/…`. The first number is the kind of record, the second the election key, from 1.

Also, under `/hostler/v1/`: running replicas, past leaderships, and the counter of the demonstration service.
"""

from __future__ import annotations

from hostler.keys.key import Key
from hostler.model.replica import LeaderRecord, ReplicaRecord, Takeover, Tally

LEADER = Key("sysvvm/1/{n:int}", LeaderRecord)
"""Expires unless it is renewed."""
FENCE = Key("sysvvm/2/{n:int}", int)
"""The highest fence that was ever assigned; only grows, never deleted."""
REPLICA = Key("/hostler/v1/replicas/{holder}", ReplicaRecord)
"""Attached to a lease of the replica."""
TAKEOVER = Key("/hostler/v1/takeovers/{fence:int}", Takeover)
"""The latest leaderships of key 1, by fence."""
DEMONSTRATION = Key("/hostler/v1/demonstration", Tally)
