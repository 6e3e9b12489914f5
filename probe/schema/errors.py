"""The errors that meshscope raises at its edges.

::

    MeshscopeError                 every error says what, where and the remedy
    ├── ConfigError                a setting or argument is wrong
    │   └── RunExistsError         a new run was to bear the name of one that is there
    ├── RunDirectoryError          a path is not a readable run directory
    │   ├── FormatVersionError     it was written by a format we do not know
    │   └── SegmentError           a file inside it is damaged beyond use
    ├── TraceFormatError           a file is no trace that we can read
    └── SchemaError                a table breaks its declared columns

Nothing here is ever raised into a training process: the probe counts its own
errors and goes on.
"""

from .printable import printable

Said = object
"""A text, or a message of the catalogue: what ``str()`` makes a sentence of."""


class MeshscopeError(Exception):
    """An error with what happened, where, and what to do about it.

    Attributes:
        where: The path, column or option it is about; may be empty.
        said: ``what`` and ``remedy`` as they were given: messages with their values, or texts.
    """

    def __init__(self, what: Said, *, where: str = "", remedy: Said = "") -> None:
        """Keep the three parts; sentences are made of them when they are shown."""
        super().__init__(what)
        self.said = {"what": what, "remedy": remedy}
        self.where = where

    @property
    def what(self) -> str:
        """What is wrong, as one clause."""
        return str(self.said["what"])

    @property
    def remedy(self) -> str:
        """What to do now; may be empty."""
        return str(self.said["remedy"])

    def __str__(self) -> str:
        """Return the three parts on one line that a terminal can show."""
        place = f"{self.where}: " if self.where else ""
        advice = f". {remedy}" if (remedy := self.remedy) else ""
        return printable(f"{place}{self.what}{advice}")

    def __repr__(self) -> str:
        """Return the sentences, as a log shows an error."""
        return f"{type(self).__name__}({str(self)!r})"


class ConfigError(MeshscopeError):
    """A setting or a command line argument is wrong."""


class RunExistsError(ConfigError):
    """A new run was to bear the name of one that is there."""


class RunDirectoryError(MeshscopeError):
    """A path is not a run directory, or holds nothing that can be read."""


class FormatVersionError(RunDirectoryError):
    """The run directory was written by a format version that we do not know."""


class SegmentError(RunDirectoryError):
    """A segment or ring file is damaged beyond use."""


class TraceFormatError(MeshscopeError):
    """A file is not a trace of any format that we can read."""


class SchemaError(MeshscopeError):
    """A table lacks a declared column or has it with another type."""
