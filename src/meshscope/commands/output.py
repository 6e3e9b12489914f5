"""Writing results to stdout, and remarks to stderr."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from meshscope.probe.schema.printable import printable


def print_json(value: dict[str, Any]) -> None:
    """Write JSON; a value that is not finite becomes null, and a numpy scalar its number."""
    import msgspec

    encoded = msgspec.json.encode(value, enc_hook=lambda scalar: scalar.item())
    emit(msgspec.json.format(encoded, indent=1).decode())


def emit(text: str) -> None:
    """Write a result to stdout; a reader that has gone (head, less) ends no command."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(clause: str) -> None:
    """Write one line to stderr."""
    with suppress(BrokenPipeError):
        sys.stderr.write(f"meshscope: {printable(clause)}\n")
