"""Moving whole stores: copy, backup, restore.

Not here: anything about terminals. Progress is reported through a callback.
"""
