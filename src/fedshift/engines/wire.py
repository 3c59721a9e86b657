"""Every message through bytes and back, as between real sites; it must change nothing."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from ..core import state
from ..core.task import Task
from .base import Job, Method, Result, client_round
from .sequential import Sequential


class Wire(Sequential):
    """Serialises, counts, parses by the declared types and checks each message before it is used."""

    name: ClassVar[str] = "wire"

    def __init__(self) -> None:
        self.sent_up = 0  # bytes with their framing
        self.sent_down = 0
        self._manifests: dict[tuple[str, str], state.Manifest] = {}

    def train(self, method: Method, task: Task, jobs: Iterable[Job], *, keep: bool, label: str) -> Iterator[Result]:
        """Each client in turn, behind its own link."""
        _, _, down_type, up_type = state.schema(type(method))
        for job in jobs:
            who = f"{label}, round {job.round.number}, client {task.sites[job.client]}"
            down, size = self._carry(job.down, down_type, task, f"{who}, download", (method.name, "down"))
            self.sent_down += size
            result = client_round(method, task, replace(job, down=down), keep=keep)
            up, size = self._carry(result.up, up_type, task, f"{who}, upload", (method.name, "up"))
            self.sent_up += size
            yield result._replace(up=up)

    def _carry(self, message: Any, kind: type, task: Task, who: str, link: tuple[str, str]) -> tuple[Any, int]:
        data = state.to_bytes(message)
        received: Any = state.parse(state.from_bytes(data), kind)
        state.check(received, kind, task.net, who)
        first = self._manifests.setdefault(link, state.manifest(received))
        state.check_manifest(received, first, who)
        return received, len(data)
