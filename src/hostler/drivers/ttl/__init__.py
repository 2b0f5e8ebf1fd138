"""Drivers of the TTL storage port.

    store      any store: memory, sqlite, file, etcd                                       store.py
    redis      one Lua script per verb; the server's clock; announces changes at once      redis.py
    dynamodb   one conditional write per verb; the client's clock, as there is no other    dynamodb.py
    cassandra  one lightweight transaction per verb; the servers' clocks, whole seconds    cassandra.py

Shared with other drivers: `drivers.deadline` (each call ends at its deadline, and all end when the storage is closed),
`drivers.redis_client` (connections to a Redis server, and the translation of its errors).

The clients of the last three are extras (`pip install 'hostler[redis]'`), imported when a storage is opened. None of
them may retry by itself: a verb whose outcome is unknown is `Uncertain`.
"""
