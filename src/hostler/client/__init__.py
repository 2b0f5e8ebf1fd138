"""The typed client of the HTTP API, for Python programs and for our own command line.

The client makes no decisions: it sends what it is given and returns the answer.
"""

from hostler.client.channel import Channel
from hostler.client.client import Client
from hostler.client.events import Events

__all__ = ["Channel", "Client", "Events"]
