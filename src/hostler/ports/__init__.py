"""What the engine needs from the world, as Protocols; the docstring is the contract.

Not here: anything that does I/O, or knows which driver stands behind a port.
"""
