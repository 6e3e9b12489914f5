"""What a change would make of the step time, by replay of the recorded run."""

from .changes import Change, parse_changes
from .predict import Prediction, predict

__all__ = ["Change", "Prediction", "parse_changes", "predict"]
