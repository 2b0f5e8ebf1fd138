"""What runs the tests: lanes, the report, artefacts of failures, the pace of the machine, and a server that forks
processes.

Nothing here knows what is tested. `docs/testing.md` has the picture.
"""
