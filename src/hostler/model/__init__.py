"""What the records say: frozen values with their JSON, to the letter of the contracts.

Not here: keys, stores, clocks, I/O.
"""
