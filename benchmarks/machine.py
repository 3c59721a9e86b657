"""What a measurement was made on, without anything that tells whose it is."""

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "sve", "asimd")


def about() -> dict[str, Any]:
    """Machine, versions and date."""
    import torch

    from fedshift import __version__

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cores": len(os.sched_getaffinity(0)),
        "flags": flags(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "system": f"{platform.system()} {platform.release().split('-')[0]}, {platform.machine()}",
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "fedshift": __version__,
        "date": datetime.now(UTC).date().isoformat(),
    }


def flags() -> list[str]:
    """Those instruction sets that decide how fast matrix products are."""
    path = Path("/proc/cpuinfo")
    words = set(path.read_text(encoding="utf-8").split()) if path.exists() else set()
    return [flag for flag in FLAGS if flag in words]


def in_words(machine: dict[str, Any]) -> str:
    """One sentence."""
    gpu = f"{machine['gpu']}, " if machine["gpu"] else ""
    sets = f" ({', '.join(machine['flags'])})" if machine["flags"] else ""
    return (
        f"{machine['date']}: {gpu}{machine['cores']} cores{sets}, {machine['memory_gib']} GiB of memory, "
        f"{machine['system']}; Python {machine['python']}, torch {machine['torch']}, fedshift {machine['fedshift']}."
    )


if __name__ == "__main__":
    sys.stdout.write(in_words(about()) + "\n")
