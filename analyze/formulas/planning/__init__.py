"""What a model on a mesh holds, computes and sends, from formulas, before anything runs.

No torch, no tables: the reference trainer uses the same formulas. A name is imported when it is
first used.
"""

from typing import TYPE_CHECKING

from meshscope.probe.schema.first_use import at_first_use

if TYPE_CHECKING:
    from .job import PlannedJob, Recompute
    from .plan import JobPlan, make_job_plan
    from .settings import PlanSettings
    from .source import planned_job

__all__ = [
    "JobPlan",
    "PlanSettings",
    "PlannedJob",
    "Recompute",
    "make_job_plan",
    "planned_job",
]

if not TYPE_CHECKING:  # A checker would take this for a module that has any name.
    __getattr__, __dir__ = at_first_use(
        globals(),
        {
            "JobPlan": "plan",
            "PlanSettings": "settings",
            "PlannedJob": "job",
            "Recompute": "job",
            "make_job_plan": "plan",
            "planned_job": "source",
        },
    )
