"""The doors: command line, server, agent, web.

Not here: decisions. A door parses, calls, and shows.
"""
