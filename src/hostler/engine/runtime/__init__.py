"""The machinery that every controller and agent uses. It knows no feature; features import it, never the reverse.

work_queue  names waiting to be reconciled
resync      the periodic full pass
"""
