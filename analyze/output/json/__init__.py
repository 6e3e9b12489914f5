"""JSON forms of the results that other programs rely on; keys may be added, these stay.

A form is imported when it is first used.
"""

from typing import TYPE_CHECKING

from meshscope.probe.schema.first_use import at_first_use

if TYPE_CHECKING:
    from .breakdown import breakdown_to_json
    from .collectives import collectives_to_json, communication_to_json
    from .comparison import comparison_to_json
    from .critical_path import critical_path_to_json
    from .diagnosis import diagnosis_to_json
    from .kernels import kernels_to_json
    from .memory import memory_to_json
    from .topology import topology_to_json
    from .whatif import prediction_to_json

__all__ = [
    "breakdown_to_json",
    "collectives_to_json",
    "communication_to_json",
    "comparison_to_json",
    "critical_path_to_json",
    "diagnosis_to_json",
    "kernels_to_json",
    "memory_to_json",
    "prediction_to_json",
    "topology_to_json",
]

if not TYPE_CHECKING:  # A checker would take this for a module that has any name.
    __getattr__, __dir__ = at_first_use(
        globals(),
        {
            "breakdown_to_json": "breakdown",
            "collectives_to_json": "collectives",
            "communication_to_json": "collectives",
            "comparison_to_json": "comparison",
            "critical_path_to_json": "critical_path",
            "diagnosis_to_json": "diagnosis",
            "kernels_to_json": "kernels",
            "memory_to_json": "memory",
            "topology_to_json": "topology",
            "prediction_to_json": "whatif",
        },
    )
