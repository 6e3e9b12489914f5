"""Which versions of the core dependencies are installed, and whether they were tried."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass

TESTED = {
    "numpy": ("1.26", "2.4.6"),
    "pyarrow": ("17", "26.0.1"),
    "nanoarrow": ("0.7", "0.9.0"),
    "pandas": ("2.2", "3.1.1"),
    "msgspec": ("0.18", "0.22.0"),
    "isal": ("1.6", "1.9.1"),
    "nvidia-ml-py": ("12.535.77", "13.615.71"),
    "typer": ("0.16", "0.29.2"),
    "rich": ("13", "15.0.0"),
}
"""The lowest and the newest version of each core dependency that ``make versions`` tried."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A core dependency as it is here."""

    package: str
    version: str | None
    """None where it is not installed."""
    lowest: str
    newest: str

    @property
    def is_too_old(self) -> bool:
        """Whether it is older than the lowest version that was tried."""
        return self.version is not None and _release(self.version) < _release(self.lowest)

    @property
    def is_newer(self) -> bool:
        """Whether it is newer than every version that was tried."""
        return self.version is not None and _release(self.version) > _release(self.newest)


def core_dependencies() -> Iterator[Installed]:
    """Yield the core dependencies in the order in which they are required."""
    for package, (lowest, newest) in TESTED.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = None
        yield Installed(package, version, lowest, newest)


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a release, without trailing zeros: 2.2 is 2.2.0 (PEP 440)."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)
