"""Logs of the NCCL Inspector."""

from .importer import import_nccl_inspector

__all__ = ["import_nccl_inspector"]
