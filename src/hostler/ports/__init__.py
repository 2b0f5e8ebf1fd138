"""Protocols that the engine uses to reach the outside world; each docstring is the contract.

Not here: code that does I/O, or that knows which driver implements a port.
"""
