"""Three questions to one state: each site's own model at home, the global model there, and both at unseen sites."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..core.errors import UnseenSite
from ..core.net import Variables
from ..core.task import Task
from ..data.augment import Transform
from ..data.federation import Federation, Held
from ..engines.base import remember, site_model
from ..engines.loop import State
from .score import Method, Score, ensemble, logits, mean_score, score

Unseen = Literal["auto", "global", "sites", "ensemble"]


@dataclass(frozen=True)
class Evaluator:
    """Scores a state on a federation's held-out and unseen images.

    `unseen` says whose model answers at a site that took no part: the method's own for such a site (`global`), each
    participating site's in turn with the mean of their scores (`sites`), or their mean probability (`ensemble`).
    `auto` is `global` where the method has such a model and `sites` where it has none; the record says which was used.
    """

    federation: Federation
    transform: Transform
    batch: int
    unseen: Unseen

    def __call__(self, method: Method, task: Task, state: State) -> dict[str, Any]:
        """The record of one evaluation."""
        stage = method.stages()[state.stage]
        own = self._site_models(stage, task, state)
        try:
            everyones = self._global_model(stage, task, state)
        except UnseenSite:
            if self.unseen == "global" and self.federation.unseen:
                raise
            everyones = None
        memo: dict[int, Score] = {}

        def ask(model: Variables, held: Held) -> Score:
            """One model on one site's images; the global model, which may answer twice, only once."""
            if same(model, everyones) and id(held) in memo:
                return memo[id(held)]
            result = score(logits(stage, task, model, held, self.transform, self.batch), held)
            return memo.setdefault(id(held), result) if same(model, everyones) else result

        return {
            "sites": self._at_home(ask, [own[i] for i in self._homes(len(own))]),
            "global": self._at_home(ask, [everyones] * len(self.federation.test)) if everyones else None,
            "unseen": {
                held.site: self._away(stage, task, ask, own, everyones, held) for held in self.federation.unseen
            },
        }

    def _homes(self, models: int) -> Sequence[int]:
        """Which model answers at each site: its own, or the one that was trained on the union."""
        sites = len(self.federation.test)
        return range(sites) if models == sites else [0] * sites

    @staticmethod
    def _site_models(stage: Method, task: Task, state: State) -> list[Variables]:
        models = []
        for i in range(task.clients):
            down = stage.send(task, state.server, i)
            before = state.before[i].client if i in state.before else None
            models.append(site_model(stage, task, down, remember(stage, task, down, state.memory.get(i), before)))
        return models

    @staticmethod
    def _global_model(stage: Method, task: Task, state: State) -> Variables:
        return stage.model_for(task, stage.send(task, state.server, None), None)

    def _at_home(self, ask: Callable[[Variables, Held], Score], models: Sequence[Variables]) -> dict[str, Any]:
        rows: dict[str, Any] = {}
        for model, val, test in zip(models, self.federation.val, self.federation.test, strict=True):
            parts = {"val": val, "test": test}
            rows[test.site] = {k: ask(model, held)._asdict() for k, held in parts.items() if len(held.labels)}
        return rows

    def _away(
        self,
        stage: Method,
        task: Task,
        ask: Callable[[Variables, Held], Score],
        own: Sequence[Variables],
        everyones: Variables | None,
        held: Held,
    ) -> dict[str, Any]:
        rule = self.unseen if self.unseen != "auto" else "global" if everyones is not None else "sites"
        if rule == "global" and everyones is not None:
            result = ask(everyones, held)
        elif rule == "sites":
            result = mean_score([ask(model, held) for model in own])
        else:
            answers = [logits(stage, task, model, held, self.transform, self.batch) for model in own]
            result = score(ensemble(answers), held)
        return {"test": result._asdict(), "rule": rule}


def same(a: Variables, b: Variables | None) -> bool:
    """Whether two models are made of the very same tensors."""
    return b is not None and all(
        x.keys() == y.keys() and all(x[k] is y[k] for k in x) for x, y in zip(a, b, strict=True)
    )
