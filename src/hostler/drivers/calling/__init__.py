"""Calls over sockets: connections to workers, and the sockets on which this process is called.

connection       one connection to a worker
connection_pool  connections to workers, shared by all calls to an address
listener         reports measurements to the leader
gateway          takes calls of the slices on this node, and passes them to the router
"""
