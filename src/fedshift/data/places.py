"""Where things are kept: manifests and downloads under one folder, what can be made again under another."""

import os
from pathlib import Path

from ..core.errors import ConfigError


def data_home() -> Path:
    """Manifests and downloads: $FEDSHIFT_HOME, or ~/.local/share/fedshift."""
    return Path(os.environ.get("FEDSHIFT_HOME") or Path.home() / ".local" / "share" / "fedshift")


def cache_home() -> Path:
    """Decoded pictures and whatever else can be made again: $FEDSHIFT_CACHE, or ~/.cache/fedshift."""
    return Path(os.environ.get("FEDSHIFT_CACHE") or Path.home() / ".cache" / "fedshift")


def cache_limit() -> int:
    """How many bytes of decoded pictures may be kept: $FEDSHIFT_CACHE_GB, or 100 GB."""
    text = os.environ.get("FEDSHIFT_CACHE_GB") or "100"
    try:
        gigabytes = float(text)
        if not 0 < gigabytes < float("inf"):
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"FEDSHIFT_CACHE_GB: found {text!r}, expected a number above 0; set it to 100, say."
        ) from None
    return int(gigabytes * 1e9)
