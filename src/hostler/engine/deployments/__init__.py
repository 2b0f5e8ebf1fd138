"""Deployments, the cluster's side: from blueprints to commands for nodes, decided by the leader.

The way of a change:

    blueprint + what runs ──strategy.aim──▶ how many of which version ──decide──▶ batches of moves ──writing──▶ store
                                                    spread: on which nodes, and why not on the others

- `moves`: the only way in which a slice's record changes; no illegal move passes it. The node's side uses it too.
- `limits`: how long each step may take. `fleet`, `roster`: what runs, indexed as it changes. `ground`: the nodes, and
  what stands against each. `spread`: which of them. `wishes`: which blueprint says what of a slice.
- `strategy`, `gates`, `autoscale`, `measured`: how one version follows another.
- `decide`: what is to be moved now. `loading`: new instances; `remedy`: failed and stuck ones; `doubles`: such as have
  the same number; `rebalance`: moves to nodes that joined. `steps`, `writing`: the transactions. `controller`: the
  service of the leader.
- `document`: blueprint files. `judgement`: what stands against an apply, and what must still be so when it is written.
  `plan`, `placing`: what it would do. `reading`, `shown`, `service`: what people ask, and are told.

Pure are `moves`, `limits`, `roster`, `spread`, `decide`, `steps`, the strategies, `document`, `judgement`, `plan` and
`shown`. Nothing is remembered outside the store: what failed, how often, and how far an upgrade is stands there, and
the next leader goes on from it.
"""
