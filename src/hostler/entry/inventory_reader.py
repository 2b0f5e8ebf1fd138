"""Inventory files, read by a process of their own where they are large.

A thread would take the interpreter from the event loop for seconds, and the collector's long pauses with it; a process
takes a processor, if there is one to spare.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

import msgspec

from hostler.engine.inventory.export import read_document
from hostler.errors import Invalid, Unavailable
from hostler.model.inventory_api import CLOUDCHAMBER, HOSTLER, InventoryDocument, InventoryText

SMALL = 64 * 1024
"""Characters that are read at once: a process takes as long to begin."""
WITHIN = 30.0
_POLITE = 10


class _Said(msgspec.Struct):
    """What the process answers: a document, or what is wrong with the file."""

    document: InventoryDocument | None = None
    wrong: str = ""


def read_aside(text: str, file: str, format_: str = HOSTLER) -> InventoryDocument:
    """What a file says. It blocks. Invalid: something is wrong with it. Unavailable: there is no answer."""
    if len(text) <= SMALL:
        return read_document(text, file, format_)
    command = [sys.executable, "-P", "-m", __name__]
    asked = InventoryText(
        text=text, file=file, format="cloudchamber" if format_ == CLOUDCHAMBER else "hostler"
    ).encode()
    try:
        done = subprocess.run(
            command, input=asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=WITHIN, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"{file}: it was not read within {WITHIN:g} s; try again, or load it by: hostler inventory load FILE"
        ) from None
    except OSError as error:
        raise Unavailable(f"{file}: no process to read it can be started: {error.strerror}; try again") from None
    if done.returncode:
        raise Unavailable(f"{file}: the process that read it ended with {done.returncode}; try again")
    said = msgspec.json.decode(done.stdout, type=_Said)
    if said.document is None:
        raise Invalid(said.wrong)
    return said.document


def main() -> None:
    """The process: one file in, one answer out."""
    with suppress(OSError):
        os.nice(_POLITE)
    asked = InventoryText.decode(sys.stdin.buffer.read())
    try:
        said = _Said(document=read_document(asked.text, asked.file, asked.format))
    except Invalid as wrong:
        said = _Said(wrong=str(wrong))
    sys.stdout.buffer.write(msgspec.json.encode(said))


if __name__ == "__main__":
    main()
