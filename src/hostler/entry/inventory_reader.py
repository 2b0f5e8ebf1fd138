"""Parsing of inventory files, in a subprocess if they are large.

A thread would hold the interpreter lock for seconds and cause long garbage collection pauses in the event loop.
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
"""Largest file, in characters, that is parsed in this process: starting a subprocess takes as long."""
WITHIN = 30.0
_POLITE = 10


class _Said(msgspec.Struct):
    """The subprocess's answer: a document, or the error in the file."""

    document: InventoryDocument | None = None
    wrong: str = ""


def read_aside(text: str, file: str, format_: str = HOSTLER) -> InventoryDocument:
    """Return the content of an inventory file. Blocks.

    Invalid: the file has an error. Unavailable: the subprocess gave no answer.
    """
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
            f"{file}: not parsed within {WITHIN:g} s; try again, or load it with: hostler inventory load FILE"
        ) from None
    except OSError as error:
        raise Unavailable(f"{file}: cannot start a process to parse it: {error.strerror}; try again") from None
    if done.returncode:
        raise Unavailable(f"{file}: the process that parsed it ended with code {done.returncode}; try again")
    said = msgspec.json.decode(done.stdout, type=_Said)
    if said.document is None:
        raise Invalid(said.wrong)
    return said.document


def main() -> None:
    """Run the subprocess: read one file from stdin, write one answer to stdout."""
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
