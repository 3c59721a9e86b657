"""What a process and all that it has started cost: processor seconds and memory, as Linux counts them."""

import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")


def family(root: int) -> list[int]:
    """The process, its children, and theirs."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            children[int(_stat(path)[1])].append(int(path.name))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += children[found[-1]]
    return found


def cpu(pids: list[int]) -> float:
    """Seconds of processors until now, with those of children that have ended."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            total += sum(map(int, _stat(Path(f"/proc/{pid}"))[11:15])) * TICK
    return total


def peak(pids: list[int]) -> float:
    """The sum of each one's largest resident memory so far, in MiB."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
            total += sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    return total


def end(pids: list[int]) -> None:
    """End what is still there of them."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _stat(path: Path) -> list[str]:
    """The fields after the name, which may hold blanks."""
    return (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
