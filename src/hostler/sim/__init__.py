"""Hostler in virtual time against simulated hardware.

This package contains no decisions: the simulator runs the same engine as production.
"""
