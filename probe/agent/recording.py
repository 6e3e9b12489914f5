"""Readings kept as compressed JSON lines, and read again in place of a machine."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..clock import now_ns
from ..schema.errors import ConfigError, SegmentError
from ..schema.manifest import create_file
from ..schema.message import message
from ..schema.reading import open_file
from .readings import MOST_BYTES, Reading, ReadingError, ReplayEnded, reading_from_json

FORMAT = "meshscope readings 1"
_FLUSH_NS = 10_000_000_000
"""What a node that dies may lose."""
_MOST_FILE_BYTES = 1 << 30
"""Bounds what a recorder that nobody stops leaves on the disk."""


class RecordingWriter:
    """A file that readings are added to.

    It is readable up to the last flush at any time, also after a kill.
    """

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            ConfigError: It exists.
            OSError: It cannot be created.
        """
        try:
            descriptor = create_file(path)
        except FileExistsError:
            raise ConfigError(
                message("refused.exists_already"),
                where=str(path),
                remedy=message("advice.new_file"),
            ) from None
        self._raw = open(descriptor, "wb")  # noqa: SIM115 - closed in close()
        self._file = gzip.GzipFile(fileobj=self._raw, mode="wb", mtime=0)
        self._file.write(json.dumps({"format": FORMAT}).encode() + b"\n")
        self._flushed_ns = now_ns()

    def add(self, reading: Reading) -> None:
        """Append a reading.

        Raises:
            OSError: It cannot be written.
        """
        if self._raw.tell() < _MOST_FILE_BYTES:
            self._file.write(reading.to_json().encode() + b"\n")
        if reading.time_ns - self._flushed_ns >= _FLUSH_NS:
            self._flushed_ns = reading.time_ns
            self._file.flush(zlib.Z_SYNC_FLUSH)
            self._raw.flush()

    def close(self) -> None:
        """Write the rest and close the file.

        Raises:
            OSError: It cannot be written.
        """
        try:
            self._file.close()
        finally:
            self._raw.close()


class ReplayReader:
    """Gives the readings of one source of a recording, one after the other.

    Args:
        path: The recording.
        name: The source.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self._file = open_file(path)
        self._readings = _readings(self._file, path, name)

    def read(self) -> Reading:
        """Return the next reading, with the times that it was recorded with.

        Raises:
            ReplayEnded: There is no further one.
            SegmentError: The file is damaged.
        """
        try:
            return next(self._readings)
        except StopIteration:
            raise ReplayEnded from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def recorded_sources(path: Path) -> list[str]:
    """Return the names of the sources in a recording, in the order of their first readings.

    Raises:
        SegmentError: It is no recording, or damaged.
        OSError: It cannot be read.
    """
    with open_file(path) as file:
        return list(dict.fromkeys(r.source for r in _readings(file, path, None)))


def _readings(file: IO[bytes], path: Path, name: str | None) -> Iterator[Reading]:
    """Yield readings up to the end, or up to where a killed writer left off."""
    with gzip.GzipFile(fileobj=file) as lines:
        try:
            head = lines.readline(MOST_BYTES)
            if json.loads(head or b"null") != {"format": FORMAT}:
                raise SegmentError(message("refused.no_readings"), where=str(path))
            while line := lines.readline(MOST_BYTES + 1):
                reading = reading_from_json(line)
                if name in (None, reading.source):
                    yield reading
        except EOFError:
            return
        except gzip.BadGzipFile as error:
            raise SegmentError(message("refused.no_readings"), where=str(path)) from error
        except (ReadingError, ValueError, OSError, zlib.error) as error:
            raise SegmentError(message("refused.damaged", error=error), where=str(path)) from error
