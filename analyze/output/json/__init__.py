"""JSON forms of the results that other programs rely on; keys may be added, these stay."""

from .breakdown import breakdown_to_json
from .collectives import collectives_to_json
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
    "comparison_to_json",
    "critical_path_to_json",
    "diagnosis_to_json",
    "kernels_to_json",
    "memory_to_json",
    "prediction_to_json",
    "topology_to_json",
]
