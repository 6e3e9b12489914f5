"""PyTorch's memory timelines and snapshots."""

from .importer import import_memory

__all__ = ["import_memory"]
