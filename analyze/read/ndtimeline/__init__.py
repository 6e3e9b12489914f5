"""NDTimeline-style parquet of pipeline jobs."""

from .importer import import_ndtimeline

__all__ = ["import_ndtimeline"]
