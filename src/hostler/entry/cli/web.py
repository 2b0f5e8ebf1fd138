"""`hostler web`."""

from __future__ import annotations

import os
import sys
import webbrowser

import click

from hostler.entry.cli.failure import note
from hostler.entry.cli.server_options import Server, chosen_server, reached, server_options
from hostler.entry.cli.store_option import complete


@click.command()
@click.option("--print", "only_print", is_flag=True, help="Print the address instead of opening it.")
@server_options
def web(only_print: bool) -> None:
    """Open the web UI, signed in as the account of the token.

    The URL contains a ticket that signs in once, within 60 seconds. If no browser can be opened, the URL is printed.
    With --print it is printed alone on standard output. To sign in without this command, open the server's URL and
    enter a name and password, or a token.
    """
    complete(_web(chosen_server(), only_print=only_print))


async def _web(server: Server, *, only_print: bool) -> None:
    async with reached(server) as client:
        told = await client.users.web_ticket()
        url = client.url
    address = f"{url}{told.url}/{told.ticket}"
    if not only_print:
        if _opened(address):
            click.echo(f"opened {url}/")
            return
        note("note: no browser could be opened here; open this address yourself")
    click.echo(address)
    note("it signs in once, within 60 s; treat it like a password until then")


def _opened(address: str) -> bool:
    """Open a browser; return whether that worked. A text browser is tried only if BROWSER names it."""
    seen = sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    return seen and webbrowser.open(address)
