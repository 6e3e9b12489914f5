"""What a change would make of the step time, by replay of the recorded run."""

from .changes import Change, parse_changes
from .predict import Prediction, predict, repaired_times
from .repaired_times import RepairedTimes

__all__ = ["Change", "Prediction", "RepairedTimes", "parse_changes", "predict", "repaired_times"]
