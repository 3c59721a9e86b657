"""Where things are kept: manifests and downloads under one folder, what can be made again under another."""

import os
from pathlib import Path


def data_home() -> Path:
    """Manifests and downloads: $FEDSHIFT_HOME, or ~/.local/share/fedshift."""
    return Path(os.environ.get("FEDSHIFT_HOME") or Path.home() / ".local" / "share" / "fedshift")


def cache_home() -> Path:
    """Decoded pictures and whatever else can be made again: $FEDSHIFT_CACHE, or ~/.cache/fedshift."""
    return Path(os.environ.get("FEDSHIFT_CACHE") or Path.home() / ".cache" / "fedshift")
