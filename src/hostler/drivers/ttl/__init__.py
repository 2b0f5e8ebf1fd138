"""Drivers of the ttl storage port.

    store      any store: memory, sqlite, file, etcd                                       store.py
    redis      one Lua script a verb; the server's clock; tells of changes at once         redis.py (and _listener)
    dynamodb   one conditional write a verb; the client's clock, as there is no other      dynamodb.py
    cassandra  one lightweight transaction a verb; the servers' clocks, whole seconds      cassandra.py (and _reactor)

What they share with others: `drivers.calls` (each call ends at its deadline, all of them when the storage is closed),
`drivers.redis_link` (connections to a Redis server, and what it may answer).

The clients of the last three are extras (`pip install 'hostler[redis]'`), imported when a storage is opened. None of
them may repeat anything by itself: a verb whose outcome is unknown is `Uncertain`.
"""
