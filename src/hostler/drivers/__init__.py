"""Implementations of the ports: one package per port, one driver per technology.

A driver translates and decides nothing. It turns foreign exceptions into Hostler's errors, and knows neither the engine
nor the drivers of other ports. Only `hostler.wiring` and `hostler.sim` name drivers.
"""
