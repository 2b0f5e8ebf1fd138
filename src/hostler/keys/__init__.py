"""The key families: which key holds which record, on the pages `families` and `lab`. No key is spelled
anywhere else.

Not here: what to do with a record.
"""
