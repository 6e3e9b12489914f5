"""The published straggler metrics of an NDTimeline job, by the published rules.

``metrics`` computes them, ``parts`` takes S apart, ``scenarios`` replays, ``graph`` builds the replay graph from
``rules``, ``job`` reads the trace that ``source`` finds.
"""

from .metrics import PublishedMetrics, Repair, published_metrics
from .parts import Parts, Shares
from .source import find_job

__all__ = ["Parts", "PublishedMetrics", "Repair", "Shares", "find_job", "published_metrics"]
