"""A capture in the forms of other tools."""

from .csv import export_csv
from .hta import export_hta
from .perfetto import export_perfetto
from .summaries import export_summaries

__all__ = ["export_csv", "export_hta", "export_perfetto", "export_summaries"]
