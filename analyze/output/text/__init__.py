"""Results as documents, which a terminal, Markdown and HTML draw in their own ways.

A document is imported when it is first used.
"""

from typing import TYPE_CHECKING

from meshscope.probe.schema.first_use import at_first_use

if TYPE_CHECKING:
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

if not TYPE_CHECKING:  # A checker would take this for a module that has any name.
    __getattr__, __dir__ = at_first_use(
        globals(),
        {
            "breakdown_document": "breakdown",
            "collectives_document": "collectives",
            "comparison_document": "comparison",
            "critical_path_document": "critical_path",
            "diagnosis_document": "diagnosis",
            "kernels_document": "kernels",
            "prediction_document": "whatif",
            "to_text": "diagnosis",
            "topology_document": "topology",
        },
    )
