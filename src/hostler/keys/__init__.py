"""The key families: which key holds which record. One module per family; no key is spelled anywhere else.

Not here: what to do with a record.
"""
