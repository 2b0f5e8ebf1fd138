"""The HTTP API, typed, for Python programs and for our own command line.

Not here: anything that decides; the client sends what it is given and says what came back.
"""

from hostler.client.channel import Channel
from hostler.client.client import Client
from hostler.client.events import Events

__all__ = ["Channel", "Client", "Events"]
