"""The HTTP API, typed, for Python programs and for our own command line.

Not here: anything that decides; the client sends what it is given and says what came back.
"""

from hostler.client.client import Client
from hostler.client.console import Console
from hostler.client.events import Events

__all__ = ["Client", "Console", "Events"]
