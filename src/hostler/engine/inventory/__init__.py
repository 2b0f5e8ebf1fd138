"""Inventory of the datacenter: regions, zones, racks, their pdus and tors, and blades, each of which is a node.

    inventory_file   the file, and the value that it is parsed into
    cloudchamber     import of CloudChamber's inventory file
    streaming_json   the document in JSON, decoded in pieces
    export           the inventory from records, and the document from the inventory
    check            rules for a rack and for all racks; each fault has its position
    plan             pure: what a load would add, change and remove
    flow             pure: burn-in and retirement of blades and racks
    flow_controller  the controller of these flows
    service          operations for HTTP and the command line
    queries          racks, and the state of their nodes
    blade_summary    the state of every blade in one word
    local_rack       the rack of `hostler up`, if there is no inventory
    topology_cache   the inventory in memory; whether a node accepts machines, and if not, why

Not here: whether a blade works at this moment (its agent's heartbeat shows that), and its simulation.
"""
