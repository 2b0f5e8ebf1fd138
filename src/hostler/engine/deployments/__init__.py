"""Deployments on the leader: from blueprints to commands for nodes.

How a change is processed:

    blueprint + instances ──strategy.aim──▶ count per version ──decide──▶ batches of changes ──GuardedWriter──▶ store
                                                  spread: on which nodes, and why not on the others

- `state_machine`: the only code that changes a slice's record; it rejects illegal transitions. The agent uses it too.
  It also says how long each step may take.
- `slice_cache`, `instance_index`: the instances, indexed as they change.
  `node_cache`: the nodes, and why a node accepts no slices. `spread`: chooses among them. `desired`: which blueprint
  owns a slice, and its spec.
- `strategy`, `rollout`, `phases`, `autoscale`, `call_metrics`: how one version replaces another.
- `decide`: the changes to make now. `instance_placement`: new instances; `failed_instances`: failed and stuck ones;
  `consistency`: instances that share a number, and endpoints without one; `rebalance`: moves to nodes that joined.
  `transactions`: the writes. `controller`: the leader's service.
- `blueprint_file`: blueprint files. `apply_preconditions`: reasons to reject an apply, and what must still hold when it
  is written. `plan`: what an apply would do. `queries`, `views`, `service`: the API's requests and
  responses.

Pure modules: `state_machine`, `instance_index`, `spread`, `decide`, `transactions`, the strategies,
`blueprint_file`, `apply_preconditions`, `plan` and `views`. All durable state is in the store, including failure counts
and the progress of a rollout, so the next leader continues from there.
"""
