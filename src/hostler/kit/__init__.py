"""Small tools that know nothing of Hostler: clocks, backoff, sorted keys.

Not here: anything that names a key, a record, a store or an error of ours.
"""
