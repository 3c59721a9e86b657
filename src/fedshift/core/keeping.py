"""What methods share that keep some tensors at each client and average the rest."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from .algorithm import Algorithm
from .average import average
from .errors import UnseenSite
from .net import Part, Variables, overlay, part, without
from .task import Cohort, Task, Work


class Shared(NamedTuple):
    """The tensors that travel."""

    model: Part


class Own(NamedTuple):
    """The tensors that are this client's alone."""

    model: Part


@dataclass(frozen=True)
class Keeping(Algorithm[Shared, Own, Shared, Shared]):
    """Averaging of all but `_kept`; of these, `_reported` is averaged too, but for new sites alone."""

    @abstractmethod
    def _kept(self, task: Task) -> frozenset[str]:
        """Names of what each client has for itself."""

    @abstractmethod
    def _reported(self, task: Task) -> frozenset[str]:
        """Names of what clients upload though they get none of it back."""

    def _stand_in(self, task: Task) -> Part:
        """What a new site has in the place of tensors that are kept and not reported: nothing by default."""
        return Part({}, {})

    def init_server(self, task: Task) -> Shared:
        """The network's initial values."""
        return Shared(self._sent(task, task.net.variables()))

    def send(self, task: Task, server: Shared, client: int | None) -> Shared:
        """What is shared; a new site gets whatever there is."""
        return server if client is None else Shared(without(server.model, self._kept(task)))

    def init_client(self, task: Task, down: Shared, before: Any = None) -> Own:
        """Every client starts from the values of the initial network."""
        return Own(part(task.net.variables(), self._kept(task)))

    def finish(self, task: Task, work: Work) -> tuple[Shared, Own]:
        """Upload what is shared and reported, keep the rest."""
        return Shared(self._sent(task, work.model)), Own(part(work.model, self._kept(task)))

    def _sent(self, task: Task, model: Variables) -> Part:
        return without(model, self._kept(task) - self._reported(task))

    def aggregate(self, task: Task, server: Shared, ups: Iterator[Shared], cohort: Cohort) -> Shared:
        """Average what was sent."""
        return average(task, ups, cohort)

    def model_for(self, task: Task, down: Shared, client: Own | None) -> Variables:
        """What is shared, and the client's own."""
        own = self._newcomer(task) if client is None else client.model
        return overlay(Variables(*down.model), own)

    def _newcomer(self, task: Task) -> Part:
        own = self._stand_in(task)
        if missing := sorted(self._kept(task) - self._reported(task) - own.params.keys() - own.buffers.keys()):
            raise UnseenSite(
                f"{self.name}: clients keep {missing[0]} and {len(missing) - 1} more tensors to themselves, so a new "
                f"site has none; `fedshift show {self.name}` names the settings that report them, or score the sites' "
                "own models with eval.unseen = 'sites'."
            )
        return own
