"""The verbs of a rank, by the part of the probe that makes them."""

from __future__ import annotations

from ..control.rank_control import VerbMaker, recording_verbs
from ..deep.rank_traces import trace_verbs

VERB_MAKERS: tuple[VerbMaker, ...] = (recording_verbs, trace_verbs)
"""Each takes the ``RankControl`` of the process and returns its verbs."""
