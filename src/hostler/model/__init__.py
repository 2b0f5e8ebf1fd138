"""Record types: frozen values whose JSON follows the contracts exactly.

Keys, stores, clocks and I/O do not belong in this package.
"""

from hostler.kit.lazy_import import keep_old_modules

keep_old_modules(
    __name__,
    {
        "api": ("vm_api", "access_api", "inventory_api", "control_api"),
        "artifact_api": ("slice_api",),
        "invoke_api": ("slice_api",),
        "node_label": ("vm",),
        "overview_api": ("control_api",),
        "reason": ("trace",),
        "retained": ("node",),
        "retained_api": ("vm_api",),
        "text_line": ("name",),
        "trace_api": ("control_api",),
    },
    renamed={
        "ControlSeen": "ControlPlaneStatus",
        "LeaderSeen": "LeaderStatus",
        "Phase": "VmPhase",
        "ReplicaSeen": "ReplicaStatus",
        "StoreSeen": "StoreStatus",
    },
)
