"""From what the user points at to a capture: formats recognised, read once, kept.

What was kept opens without the readers: these are imported when they are first used.
"""

from typing import TYPE_CHECKING

from meshscope.probe.schema.first_use import at_first_use

if TYPE_CHECKING:
    from .kept_tables import keep, read_kept
    from .load import load_trace, most_rows, read_traces

__all__ = ["keep", "load_trace", "most_rows", "read_kept", "read_traces"]

if not TYPE_CHECKING:  # A checker would take this for a module that has any name.
    __getattr__, __dir__ = at_first_use(
        globals(),
        dict.fromkeys(("load_trace", "most_rows", "read_traces"), "load")
        | dict.fromkeys(("keep", "read_kept"), "kept_tables"),
    )
