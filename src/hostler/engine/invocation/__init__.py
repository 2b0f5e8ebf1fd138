"""Calls to slices: choosing an instance, sending and retrying a call, and measuring it.

load_balancer      chooses an instance: pure, from endpoints, weights and calls in flight
endpoints          the endpoints of a slice, kept current by watches, and why it has none
service            calls from outside: checks permissions
router             one call: choose an instance, send, retry where that is safe, measure
call_metrics       measurements of this process, per second
metrics_collector  measurements of all routers: on the leader, and for clients on every replica
registration       registers this process with the workers, which then accept its calls

There are no sockets here: `hostler.ports.calls.WorkerConnections` has them.
"""
