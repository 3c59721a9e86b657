"""Reports on runs: from the files of their folders alone, so that they are instant and can be made again."""

from .comparison import Comparison, by_protocol
from .records import ReportError, Run, load
from .write import write_report

__all__ = ["Comparison", "ReportError", "Run", "by_protocol", "load", "write_report"]
