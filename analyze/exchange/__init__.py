"""JSON forms of the results that other programs rely on; keys may be added, these stay."""

from .breakdown import breakdown_to_json
from .collectives import collectives_to_json
from .diagnosis import diagnosis_to_json

__all__ = ["breakdown_to_json", "collectives_to_json", "diagnosis_to_json"]
