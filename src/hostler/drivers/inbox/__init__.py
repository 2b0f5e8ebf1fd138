"""Drivers of the lab queues (`Inbox`) and the lab records (`Board`).

    memory  in this process: several workers and writers of records share one `MemoryRedis`
    redis   one Lua script per verb, so each verb is atomic on the server

Both work alike: a delivered request is in a list of its worker under a unique token until it is acknowledged; later
requests of the same user in that queue are set aside until then.
"""
