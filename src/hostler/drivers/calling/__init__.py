"""Calls over sockets: lines to workers, and the doors at which others ask this process.

lines     connections to workers, shared by all calls to an address
listener  tells the leader what was measured
gateway   takes calls of the slices on this node, and hands them to the router
"""
