"""Small tools that know nothing of Hostler: clocks, backoff, sorted keys.

Not here: code that names a key, a record, a store or an error of Hostler.
"""
