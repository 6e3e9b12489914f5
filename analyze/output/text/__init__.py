"""Results as documents, which a terminal, Markdown and HTML draw in their own ways."""

from .breakdown import breakdown_document
from .collectives import collectives_document
from .comparison import comparison_document
from .critical_path import critical_path_document
from .diagnosis import diagnosis_document, to_text
from .kernels import kernels_document
from .topology import topology_document
from .whatif import prediction_document

__all__ = [
    "breakdown_document",
    "collectives_document",
    "comparison_document",
    "critical_path_document",
    "diagnosis_document",
    "kernels_document",
    "prediction_document",
    "to_text",
    "topology_document",
]
