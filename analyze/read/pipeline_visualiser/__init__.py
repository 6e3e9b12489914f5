"""Dumps of the pipeline visualiser."""

from .importer import import_pipeline_visualiser

__all__ = ["import_pipeline_visualiser"]
