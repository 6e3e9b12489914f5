"""Nsight Systems exports in SQLite."""

from .importer import import_nsight

__all__ = ["import_nsight"]
