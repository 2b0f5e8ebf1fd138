"""Protocols that the engine uses to reach the outside world; each docstring is the contract.

Not here: code that does I/O, or that knows which driver implements a port.
"""

from hostler.kit.lazy_import import keep_old_modules

keep_old_modules(
    __name__,
    {
        "artifacts": ("slices",),
        "finding": ("machine_driver",),
        "images": ("machine_driver",),
        "peers": ("machines",),
        "url_driver": ("url",),
    },
)
