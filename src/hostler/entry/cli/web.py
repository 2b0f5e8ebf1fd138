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
    """Open the web page, signed in as the account of the token.

    The address holds a ticket that signs in once, within 60 seconds. Where no browser can be opened it is printed; with
    --print it stands alone on standard output. Without this command: open the server's address, and sign in with a name
    and a password, or with a token.
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
    note("it signs in once, within 60 s; it is as good as a password until then")


def _opened(address: str) -> bool:
    """Whether a browser took it. One that would take over this terminal is tried only if it is asked for by name."""
    seen = sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    return seen and webbrowser.open(address)
