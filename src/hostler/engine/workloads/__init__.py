"""Workloads: a number of identical VMs, created, replaced and removed by instance number.

    vm_template     pure: the VM of an instance, and the part of it that is changed in place
    instance_index  the instances of each workload, indexed by their condition, kept current from the caches
    decide          pure: from the spec and the index to the instances to create, remove, replace and change
    transactions    what each step compares and writes; keeps targets consistent with the commands of the VMs
    controller      on the leader: executes decisions in batches
    workload_file   workload files
    changes         pure: how each request changes the spec
    views           pure: API views
    service         called by the HTTP API and the CLI

An instance is an index record, a target and a VM, which are created in one transaction and deleted in one. The VM is an
ordinary VM: the VM controllers place, move and delete it, and write its target when they do. The agent that observes
the VM writes its actual state. So target and actual never share a writer.

Placement of VMs and the work of a node's agent do not belong in this package.
"""
