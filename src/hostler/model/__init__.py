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
        "api": {"Phase": "VmPhase"},
        "node_label": {"NAME": "HARDWARE_NAME", "NAME_RULE": "HARDWARE_NAME_RULE", "advertised": "hardware_labels"},
        "overview_api": {
            "ControlSeen": "ControlPlaneStatus",
            "LeaderSeen": "LeaderStatus",
            "ReplicaSeen": "ReplicaStatus",
            "StoreSeen": "StoreStatus",
        },
    },
)
