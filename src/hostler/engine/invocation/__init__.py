"""Calls to slices: choosing an instance, sending and retrying a call, and measuring it.

load_balancer      chooses an instance: pure, from endpoints, weights and calls in flight
endpoint_cache     the endpoints of a slice, kept current by watches
service            calls from outside: checks permissions
router             one call: choose an instance, send, retry where that is safe, measure
no_endpoint        explains why a slice has no endpoint
call_metrics       measurements of this process, per second
metrics_collector  measurements of all routers, on the leader
metrics_feed       the same for clients, on every replica
registration       registers this process with the workers, which then accept its calls

There are no sockets here: `hostler.ports.calls.Lines` has them.
"""
