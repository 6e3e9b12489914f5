"""Kineto (torch.profiler) traces, one rank a file."""

from .importer import import_kineto

__all__ = ["import_kineto"]
