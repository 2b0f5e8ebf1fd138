"""Accounts, tokens and authentication: who a caller is, and who may change that.

Not here: HTTP, password hashing (a port), and the meaning of rights for virtual machines and nodes (their services
check them).
"""
