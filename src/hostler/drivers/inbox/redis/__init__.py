"""Lab queues and records on Redis (6.2 or newer); the names are those of `keys.lab`.

scripts        the atomic steps, as Lua scripts
inbox          the queues, and the wait for new requests
lab_records    the records
"""

from __future__ import annotations

from hostler.drivers.inbox.redis.inbox import RedisInbox
from hostler.drivers.inbox.redis.lab_records import RedisLabRecords

__all__ = ["RedisInbox", "RedisLabRecords"]
