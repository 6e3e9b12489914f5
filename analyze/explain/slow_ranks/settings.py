"""The bounds of the detection: what counts as slow, at which rate of false alarms."""

from __future__ import annotations

import msgspec

from meshscope.probe.schema.errors import ConfigError

from ...wording.message import message


class DetectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a detection; the thresholds follow from them by theory."""

    smallest: float = 0.02
    """Slow-down that is looked for; smaller ones are found later, or not."""
    spread: float = 0.005
    """Standard deviation of the constant differences between healthy ranks (silicon, cooling)
    where a job is too small to show its own; that of a production trace was 0.6 %."""
    large_job_spread: float = 0.003
    """The same for a job of at least four replicas and eight ranks, before it is averaged with
    what its ranks show; it counts as much as eight ranks."""
    wander: float = 0.0017
    """Standard deviation by which the speed of a healthy rank changes slowly (heat)."""
    steps_between_false_alarms: float = 20_000
    """Mean number of steps of a healthy running *job* between two false suspects."""
    false_alarms_per_window: float = 1e-3
    """Chance that a rank of a healthy job is blamed in a recorded window."""
    baseline_steps: int = 20
    """Steps before the own past of a rank counts as known."""
    memory_steps: int = 200
    """Steps after which a rank's past is forgotten, so that slow drift is no change."""
    picked_from: int | None = None
    """Ranks of the job, where only some of them are judged in a recorded window: any of them might have been blamed by
    chance. None: all are judged."""

    def judged(self, ranks: int) -> int:
        """Return among how many ranks one may be blamed by chance, given those of a window."""
        return max(ranks, self.picked_from or 0)

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            ConfigError: A value is outside its range.
        """
        names = ("smallest", "spread", "large_job_spread", "wander", "false_alarms_per_window")
        for name in names:
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(message("refused.not_between_0_and_1"), where=f"detection.{name}")
        for name in ("steps_between_false_alarms", "baseline_steps"):
            if getattr(self, name) < 2:
                raise ConfigError(message("refused.below_2"), where=f"detection.{name}")
        if self.memory_steps < self.baseline_steps:
            raise ConfigError(
                message("refused.memory_below_baseline"), where="detection.memory_steps"
            )
