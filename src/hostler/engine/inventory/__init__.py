"""What stands in the datacenter: regions, zones, racks, their pdus and tors, and blades, each of which is a node.

    document    the file, and the value that it is read into
    form        put together from records, and written as the document
    check       what must be true of a rack and of all racks, told with its place
    plan        pure: what a load would add, change and remove
    service     what HTTP and the command line call
    reading     of it: racks, and what their nodes do
    floor       of it: every blade in one word
    own         the rack of `hostler up`, where nobody wrote an inventory
    sight       the inventory in memory, kept up; whether a node may be placed on, and if not, why

Not here: whether a blade works at this moment (that is its agent's heartbeat), and what is simulated of it.
"""
