"""Pipeline schedules: their orders, and the replay graph of a step that follows one."""

from .graph import PassCosts, ScheduleGraph, ScheduleTimes, replayed_bubble_frac, schedule_graph
from .lanes import replay_lanes
from .orders import V_SHAPED, Action, rank_orders, stage_of
from .plan import PASS_KINDS, Plan, make_plan

__all__ = [
    "PASS_KINDS",
    "V_SHAPED",
    "Action",
    "PassCosts",
    "Plan",
    "ScheduleGraph",
    "ScheduleTimes",
    "make_plan",
    "rank_orders",
    "replay_lanes",
    "replayed_bubble_frac",
    "schedule_graph",
    "stage_of",
]
