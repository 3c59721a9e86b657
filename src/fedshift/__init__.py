"""Federated learning when the sites' data look different."""

__version__ = "0.1.0"
