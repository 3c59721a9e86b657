"""Federated learning when the sites' data look different."""

from .core.memory import keep_memory

__all__ = ["__version__", "keep_memory"]
__version__ = "0.1.0"
