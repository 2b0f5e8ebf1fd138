"""For authors of other drivers: the suites that ours pass. May see everything; nothing sees it."""
