"""Benchmarks: throughput, latency, and the overhead of Hostler over bare engines and compared with other libraries.

`python -m bench` in the root of the repository; `make bench` runs everything. Hosts are noisy, so nothing is measured
once: two sides alternate in short rounds, and medians are compared. Not here: the benchmark of a store that users of
the installed package run (`hostler.entry.store_benchmark`). The package never imports this folder, and the wheel does
not contain it.
"""
