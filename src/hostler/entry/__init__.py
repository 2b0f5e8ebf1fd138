"""Entry points: command line, server, agent, web.

Not here: decisions. An entry point parses its input, calls a service, and shows the result.
"""
