"""Files of a run's ``--out`` folder: what cannot be written is one line that says why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshscope.probe.schema.errors import ConfigError, MeshscopeError


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
            f"{path} cannot be written ({error.strerror})",
            where="--out",
            remedy="Name a folder that every rank may write to",
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
            f"{path} can no longer be written ({error.strerror})",
            where="--out",
            remedy="Look at the free space and the limits of its folder",
        ) from error
