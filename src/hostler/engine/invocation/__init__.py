"""Calling slices: which instance a call goes to, what is done when it fails, and what was measured.

route         which instance: pure, from endpoints, weights, and what is under way
routes        the endpoints of a slice as the store has them, kept up by watches
service       calls from outside: who may
router        one call: chosen, sent, tried again where that is safe, counted
why           why there is nothing to call
measures      what this process measured, second by second
gather        what all of them measured, on the leader
watch         the same for whoever looks, on every replica
registration  this process among those that workers take calls from

There are no sockets here: `hostler.ports.calls.Lines` has them.
"""
