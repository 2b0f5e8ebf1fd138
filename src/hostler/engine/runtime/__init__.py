"""The machinery that every controller and agent uses. It knows no feature; features import it, never the reverse.

env             clock, randomness, ids, logging: what everything is built from
controller      the loop of a controller: watch, queue, read, decide, write, back off
work_queue      names waiting to be reconciled, now or later; the periodic full pass
guarded_writer  the leader's transactions: guard, decision log entry, uncertain outcomes, read-your-writes
"""
