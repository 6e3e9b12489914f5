"""Files of a run's ``--out`` folder: what cannot be written is one line that says why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshscope.probe.schema.errors import ConfigError, MeshscopeError
from meshscope.probe.schema.message import message


class OutputError(MeshscopeError):
    """A file of the output can no longer be written."""


def start_file(path: Path, text: str = "") -> None:
    """Make a file with a text, and its folder, before the run starts.

    Raises:
        ConfigError: The file system refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            message("refused.path_not_written", path=path, reason=error.strerror),
            where="--out",
            remedy=message("advice.folder_of_every_rank"),
        ) from error


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Write to a file of a run that has started.

    Raises:
        OutputError: The file system refuses.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(
            message("refused.no_longer_written", path=path, reason=error.strerror),
            where="--out",
            remedy=message("advice.space_of_folder"),
        ) from error
