"""What stands behind the ports: one package per port, one driver per technology.

A driver translates, it decides nothing: foreign exceptions become ours at its edge, and no driver knows the engine or
another port's drivers. Only `hostler.wiring` and `hostler.sim` name them.
"""
