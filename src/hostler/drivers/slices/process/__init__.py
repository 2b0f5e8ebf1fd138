"""Runs each slice instance as a separate process (`hostler.slices.worker`).

driver          the port: load, activate, deactivate, unload, list
instance        one instance: its process and its state
process         a process: started, adopted, ended
instance_dir    the folder of an instance: the record for the next agent, the control connection to the worker
artifact_cache  artifacts that were fetched and unpacked, and the packages that they require
privileges      the user of a process, and its limits
log             reads the output of an instance

A process outlives the agent that started it; the next agent adopts it by the record in its folder, and the worker
itself knows its configuration. No secret is in the folder, in the arguments, or in the initial environment.

Not here: when an instance is started or ended (`engine/slices`), and what a worker does (`hostler.slices`).
"""
