"""Accounts, tokens and the door: who is who, and who may change that.

Not here: HTTP, hashing itself (a port), what rights mean to virtual machines and nodes (their services ask for them).
"""
