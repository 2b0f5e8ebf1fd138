"""Benchmarks: throughput and latency, and the overhead of Hostler over the bare engine.

Hosts are noisy, so nothing is measured once: two sides alternate in short rounds, and medians are compared.
"""
