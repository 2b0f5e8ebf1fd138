"""What decides: elections, replicas, controllers, placement, services.

Knows ports and keys. Not here: drivers, and the time unless it is given.
"""
