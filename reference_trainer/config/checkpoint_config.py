"""Settings of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshscope.probe.schema.message import message

from .checks import in_range, require

LATEST = "auto"
"""``checkpoint.resume`` that goes on from the latest checkpoint, if there is one."""
AFRESH = "none"
"""``checkpoint.resume`` that starts at step 0 whatever there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Where training is saved, how often, and where it goes on."""

    dir: str = ""
    """Folder of this run's checkpoints, on a file system that all hosts share; empty: none are
    saved."""
    every: int = 0
    """Steps between two checkpoints; 0: only after the last step, which is always saved."""
    mode: Literal["sync", "async"] = "async"
    """``sync`` trains on when everything is on disk; ``async`` when it is copied to host memory,
    and writes behind the next steps."""
    keep: int = 2
    """Newest checkpoints that are kept; older ones are removed."""
    resume: str = LATEST
    """``auto``: the latest checkpoint in ``dir``, if there is one; ``none``: start afresh; else
    the path of a checkpoint, or of a folder of them, which must be there."""

    def __post_init__(self) -> None:
        """Validate the counts.

        Raises:
            ConfigError: A count is out of range, or something is asked for that needs a folder.
        """
        in_range(self.every, 0, where="checkpoint.every")
        in_range(self.keep, 1, where="checkpoint.keep")
        require(
            self.every == 0 or bool(self.dir),
            message("refused.no_folder_to_save_to", every=self.every),
            where="checkpoint.every",
            remedy=message("advice.checkpoint_dir_or_0"),
        )
        require(
            bool(self.resume),
            message("refused.names_nothing"),
            where="checkpoint.resume",
            remedy=message("advice.auto_or_none"),
        )

    @property
    def in_use(self) -> bool:
        """Return whether anything may be saved or resumed."""
        return bool(self.dir) or self.resume not in (LATEST, AFRESH)

    def is_due(self, steps_done: int, steps: int) -> bool:
        """Return whether to save after so many steps.

        Args:
            steps_done: Steps since the start of the training, resumed or not.
            steps: Steps of the whole training.
        """
        if not self.dir:
            return False
        return steps_done == steps or (self.every > 0 and steps_done % self.every == 0)
