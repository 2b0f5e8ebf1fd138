"""Decision layer: elections, replicas, controllers, placement and services.

This package depends on ports and keys only. It contains no drivers, and it reads time only from an injected clock.
"""
