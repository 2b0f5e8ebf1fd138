"""Record types: frozen values whose JSON follows the contracts exactly.

Keys, stores, clocks and I/O do not belong in this package.
"""
