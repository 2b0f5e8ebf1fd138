"""The key families: where each record stands in the store. One page per family; no key is spelled anywhere else.

Not here: what to do with a record.
"""
