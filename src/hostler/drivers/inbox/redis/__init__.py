"""The lab door on Redis (6.2 or newer): the names are those of `keys.lab`.

scripts   what the server does as one step
inbox     the queues
bell      waits for something to come into them
board     the records
"""

from __future__ import annotations

from hostler.drivers.inbox.redis.inbox import RedisInbox
from hostler.drivers.inbox.redis.lab_records import RedisBoard

__all__ = ["RedisBoard", "RedisInbox"]
