"""Results as text for a terminal and as Markdown."""

from .breakdown import breakdown_to_text
from .collectives import collectives_to_text
from .diagnosis import to_text

__all__ = ["breakdown_to_text", "collectives_to_text", "to_text"]
