"""Each slice instance is a process of its own (`hostler.slices.worker`).

driver    the port: load, activate, deactivate, unload, list
instance  one instance: its process, and what is known of it
process   a process: started, adopted, ended
control   the connection to a worker, on which it is asked
place     the folder of an instance, and what stands there for the next agent
library   artifacts that were fetched, unpacked
packages  what a wheel requires beside itself
rights    as whom a process runs, and what it may use

A process outlives the agent that started it; the next one adopts it by what stands in its folder, and the worker itself
knows what it is. Nothing that is secret stands there, or in its arguments, or in its first environment.

Not here: when an instance is started or ended (`engine/slices`), and what a worker does (`hostler.slices`).
"""
