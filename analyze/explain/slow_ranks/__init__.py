"""Slow ranks: found from what their own work takes, whatever the work is.

``detect`` judges a recorded window; ``OnlineDetector`` follows a running job in bounded
memory, ``Follower`` feeds it from a capture that grows. None of them says what a slow rank costs: that takes a replay (``attribution``).
"""

from .detect import detect, detect_in
from .follow import Follower, Look
from .online import OnlineDetector
from .results import DetectionResult
from .settings import DetectionSettings
from .verdict import Evidence, Persistence, RankVerdict

__all__ = [
    "DetectionResult",
    "DetectionSettings",
    "Evidence",
    "Follower",
    "Look",
    "OnlineDetector",
    "Persistence",
    "RankVerdict",
    "detect",
    "detect_in",
]
