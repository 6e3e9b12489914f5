"""Of which steps every communication record goes to disk; of the others sums do.

The choice looks at the number of the step alone, so that all ranks keep the same
steps without talking.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..schema.errors import ConfigError
from ..schema.message import message

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FULL_RECORDS = "full_records"
"""Annotation of a rank that says which steps have them."""


@dataclass(frozen=True, slots=True)
class FullRecords:
    """The steps whose communication is kept record by record."""

    first_steps: int = 0
    """All steps before this one …"""
    every_steps: int = 1
    """… and of the later ones each whose number this divides; 0 for none."""

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ConfigError: A number is negative.
        """
        for name, value in asdict(self).items():
            if value < 0:
                raise ConfigError(message("refused.below_0"), where=f"full_records.{name}")

    @property
    def are_all(self) -> bool:
        """Tell whether no step is kept as sums."""
        return self.every_steps == 1

    def of(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each step whether its records are kept."""
        kept: NDArray[np.bool_] = steps < self.first_steps
        if self.every_steps:
            kept |= steps % self.every_steps == 0
        return kept
