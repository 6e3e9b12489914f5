"""Results as text for a terminal and as Markdown."""

from .breakdown import breakdown_to_text
from .collectives import collectives_to_text
from .comparison import comparison_document
from .critical_path import critical_path_to_text
from .diagnosis import diagnosis_document, to_text
from .kernels import kernels_to_text
from .topology import topology_to_text
from .whatif import prediction_to_text

__all__ = [
    "breakdown_to_text",
    "collectives_to_text",
    "comparison_document",
    "critical_path_to_text",
    "diagnosis_document",
    "kernels_to_text",
    "prediction_to_text",
    "to_text",
    "topology_to_text",
]
