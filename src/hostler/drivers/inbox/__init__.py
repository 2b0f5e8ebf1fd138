"""Drivers of the lab door: the queues (`Inbox`) and the records (`Board`).

    memory  in this process: several workers and boards share one `MemoryDoor`
    redis   one Lua script a verb, so each is one step of the server

They work alike: a request that is handed out lies in a list of its worker under a token of its own, until it is
acknowledged; a user's later requests of that queue are set aside meanwhile.
"""
