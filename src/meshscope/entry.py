"""What the command ``meshscope`` calls first: Ctrl-C ends it without a traceback while it still loads, too."""

from __future__ import annotations

_INTERRUPTED = 130
"""As of a shell."""


def main() -> None:
    """Load the command line and run it."""
    try:
        from .cli import main as run_command

        run_command()
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
