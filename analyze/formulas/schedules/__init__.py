"""Pipeline schedules: their orders, and the replay graph of a step that follows one."""

from .graph import (
    PassCosts,
    ScheduleGraph,
    ScheduleTimes,
    replay_lanes,
    replayed_bubble_frac,
    schedule_graph,
)
from .passes import Order, Pass, PassKind
from .plan import PASS_KINDS, Plan, make_plan
from .schedule_records import (
    CHUNKED,
    SCHEDULES,
    SPLIT_BACKWARD,
    V_SHAPED,
    Schedule,
    fill_and_drain_frac,
    rank_of_last_stage,
    rank_orders,
    schedule_names,
    stage_of,
    stages_of_rank,
)

__all__ = [
    "CHUNKED",
    "PASS_KINDS",
    "SCHEDULES",
    "SPLIT_BACKWARD",
    "V_SHAPED",
    "Order",
    "Pass",
    "PassCosts",
    "PassKind",
    "Plan",
    "Schedule",
    "ScheduleGraph",
    "ScheduleTimes",
    "fill_and_drain_frac",
    "make_plan",
    "rank_of_last_stage",
    "rank_orders",
    "replay_lanes",
    "replayed_bubble_frac",
    "schedule_graph",
    "schedule_names",
    "stage_of",
    "stages_of_rank",
]
