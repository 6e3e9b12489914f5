"""Other tools' traces, read into the tables that our own captures fill.

The format is recognised by what is in the files; docs/inputs.md says what each
format gives and what it cannot give. Whoever opens what was read before loads no reader.
"""

from typing import TYPE_CHECKING

from meshscope.probe.schema.first_use import at_first_use

if TYPE_CHECKING:
    from .importing import import_trace

__all__ = ["import_trace"]

if not TYPE_CHECKING:  # A checker would take this for a module that has any name.
    __getattr__, __dir__ = at_first_use(globals(), {"import_trace": "importing"})
