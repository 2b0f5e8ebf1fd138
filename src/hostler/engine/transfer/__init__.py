"""Filling a store from another one or from a backup, and the epoch that begins with that."""
