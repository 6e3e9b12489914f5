"""Dumps of PyTorch's NCCL flight recorder."""

from .importer import import_flight_recorder

__all__ = ["import_flight_recorder"]
