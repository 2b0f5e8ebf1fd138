"""Measuring stores: how fast, and what Hostler costs over the bare engine.

Machines are noisy, so nothing is measured once: two sides take turns in short rounds, and medians are compared.
"""
