"""Hostler in virtual time against simulated hardware.

Not here: decisions. The simulator runs the same engine as production.
"""
