"""Three questions to one state: each site's own model at home, the global model there, and both at unseen sites.

Where a round may be the one that is reported, two more if asked for: how far the answers can be trusted, and what
becomes of an unseen site's answers when the model first adapts to its images without labels.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.errors import UnseenSite
from ..core.net import Variables
from ..core.task import Answer, Task
from ..data.augment import Transform
from ..data.federation import Federation, Held
from ..engines.base import in_turn, remember, site_model
from ..engines.loop import State
from .adapt import Adapter, images_for
from .known import Known
from .score import Method, Score, answers, ensemble, mean_score, score
from .uncertainty import auroc, mean_known, predicted, trust

Unseen = Literal["auto", "global", "sites", "ensemble"]
Spread = Callable[[Task, Iterable[Callable[[Task], Answer]], str], Iterator[Answer]]  # independent calls, by an engine


class Asked(NamedTuple):
    """A score, and each image's uncertainty where it was asked for."""

    score: Score
    doubt: Tensor


class Speaker(NamedTuple):
    """Who answers: one model, or several as their mean probability; `homes` are test images like those it knows."""

    models: tuple[Variables, ...]
    homes: tuple[Held, ...]


@dataclass(frozen=True)
class Evaluator:
    """Scores a state on a federation's held-out and unseen images.

    `unseen` says whose model answers at a site that took no part: the method's own for such a site (`global`), each
    participating site's in turn with the mean of their scores (`sites`), or their mean probability (`ensemble`).
    `auto` is `global` where the method has such a model and `sites` where it has none; the record says which was used.
    `uncertainty` and `adapter` add to the last stage's reported rounds.
    """

    federation: Federation
    transform: Transform
    batch: int
    unseen: Unseen
    uncertainty: bool = False
    adapter: Adapter | None = None
    spread: Spread = in_turn
    known: "Known[Asked]" = field(default_factory=lambda: Known[Asked](), compare=False, repr=False)

    def __call__(self, method: Method, task: Task, state: State, *, reported: bool = True) -> dict[str, Any]:
        """The record of one evaluation; `reported`: the round may be the one that is reported."""
        more = reported and state.stage + 1 == len(method.stages())
        return _Evaluation(self, method.stages()[state.stage], task, state, more).record()

    def speaker(self, method: Method, task: Task, state: State, site: str | None) -> Speaker:
        """Whose one answer holds at a participating site or, for None, at a new one: there several models are mixed."""
        found = _Evaluation(self, method.stages()[state.stage], task, state, False)
        names = [test.site for test in self.federation.test]
        if site is not None:
            return Speaker((found.own[found._homes()[names.index(site)]],), ())
        one = found.rule == "global" and found.everyones is not None
        return found.speakers[0] if one else Speaker(tuple(found.own), ())


@dataclass
class _Evaluation:
    """One evaluation: the models of a state, and what they were asked."""

    about: Evaluator
    stage: Method
    task: Task
    state: State
    more: bool  # trust and adaptation, if they are asked for at all
    memo: dict[tuple[object, int], Asked] = field(default_factory=dict)
    given: dict[tuple[int, int], Answer] = field(default_factory=dict)  # by model and site, as they were foreseen

    def __post_init__(self) -> None:
        """Build the models."""
        self.own = self._site_models(self.stage, self.task, self.state)
        self.everyones: Variables | None = None
        adapter = self.about.adapter
        needed = self.about.unseen == "global" or (self.more and adapter is not None and adapter.rule == "method")
        try:
            self.everyones = self._global_model(self.stage, self.task, self.state)
        except UnseenSite:
            if needed and self.about.federation.unseen:
                raise
        auto = "sites" if self.everyones is None else "global"
        self.rule = auto if self.about.unseen == "auto" else self.about.unseen
        self.speakers = self._speakers()

    def record(self) -> dict[str, Any]:
        """All three answers."""
        own, tests = [self.own[i] for i in self._homes()], self.about.federation.test
        self.about.known.turn()
        self._foresee(own)
        return {
            "sites": self._at_home(own),
            "global": self._at_home([self.everyones] * len(tests)) if self.everyones else None,
            "unseen": {held.site: self._away(held) for held in self.about.federation.unseen},
        }

    def _homes(self) -> Sequence[int]:
        """Which model answers at each site: its own, or the one that was trained on the union."""
        sites = len(self.about.federation.test)
        return range(sites) if len(self.own) == sites else [0] * sites

    @staticmethod
    def _site_models(stage: Method, task: Task, state: State) -> list[Variables]:
        if state.trained:  # as they were right after local training
            return [state.trained[i] for i in range(task.clients)]
        models = []
        for i in range(task.clients):
            down = stage.send(task, state.server, i)
            before = state.before[i].client if i in state.before else None
            models.append(site_model(stage, task, down, remember(stage, task, down, state.memory.get(i), before)))
        return models

    @staticmethod
    def _global_model(stage: Method, task: Task, state: State) -> Variables:
        return stage.model_for(task, stage.send(task, state.server, None), None)

    def _at_home(self, models: Sequence[Variables]) -> dict[str, Any]:
        rows: dict[str, Any] = {}
        for model, val, test in zip(models, self.about.federation.val, self.about.federation.test, strict=True):
            parts = {"val": val, "test": test}
            asked = {k: self._ask((model,), held) for k, held in parts.items() if len(held.labels)}
            rows[test.site] = {k: found.score.record() for k, found in asked.items()}
        return rows

    def _speakers(self) -> list[Speaker]:
        """Who answers where nobody took part; several are scored one by one."""
        tests = tuple(held for held in self.about.federation.test if len(held.labels))
        if self.rule == "global" and self.everyones is not None:
            return [Speaker((self.everyones,), tests)]
        if self.rule == "ensemble":
            return [Speaker(tuple(self.own), tests)]
        at = dict(zip((test.site for test in self.about.federation.test), self._homes(), strict=True))
        return [Speaker((m,), tuple(t for t in tests if at[t.site] == i)) for i, m in enumerate(self.own)]

    def _away(self, held: Held) -> dict[str, Any]:
        asked = [self._ask(speaker.models, held) for speaker in self.speakers]
        result = mean_score([found.score for found in asked])
        row: dict[str, Any] = {"test": result.record(), "rule": self.rule}
        row |= {"corrupted": True} if held.corrupted else {}
        if self.more and self.about.uncertainty:
            area = mean_known([auroc(a.doubt, self._known(s)) for a, s in zip(asked, self.speakers, strict=True)])
            row |= {} if area is None else {"ood_auroc": area}
        if self.more and self.about.adapter is not None:
            row["adapted"] = self._adapted(self.about.adapter, held, result)
        return row

    def _known(self, speaker: Speaker) -> Tensor:
        """The uncertainty of a speaker's answers at home."""
        found = [self._ask(speaker.models, home).doubt for home in speaker.homes]
        return torch.cat(found) if found else torch.empty(0)

    def _adapted(self, adapter: Adapter, held: Held, before: Score) -> dict[str, Any]:
        """The same images after adaptation: to those set aside for it, or to these themselves."""
        images = images_for(self.about.federation, held)
        scores = []
        for speaker in self.speakers:
            starts = (
                speaker.models if adapter.rule != "method" else [self.stage.send(self.task, self.state.server, None)]
            )
            models = [adapter(self.stage, self.task, start, images) for start in starts]
            scores.append(self._fresh(models, held).score)
        return {
            **mean_score(scores).record(),
            "before": before.accuracy,
            "rule": adapter.rule,
            "on": "transductive" if images is held else "held_out",
            "images": len(images.labels),
        }

    def _ask(self, models: Sequence[Variables], held: Held) -> Asked:
        """Some models of this state on one site's images; a model that answers in two roles, only once."""
        key = tuple(id(self.everyones if same(m, self.everyones) else m) for m in models), id(held)
        if key not in self.memo:
            self.memo[key] = self._recalled(models, held) or self._fresh(models, held)
            self.about.known.keep(self._question(held), models, self.memo[key])
        return self.memo[key]

    def _foresee(self, own: Sequence[Variables]) -> None:
        """Get all answers that are not known yet: side by side, if the engine can."""
        about, parts = self.about, (self.about.federation.val, self.about.federation.test)
        pairs = [(m, held) for part in parts for m, held in zip(own, part, strict=True)]
        pairs += [(self.everyones, held) for part in parts for held in part] if self.everyones else []
        pairs += [(m, held) for held in about.federation.unseen for who in self.speakers for m in who.models]
        wanted = {self._pair(m, held): (m, held) for m, held in pairs if len(held.labels)}
        new = {key: pair for key, pair in wanted.items() if self._recalled(pair[:1], pair[1]) is None}
        calls = (partial(_answers, self.stage, m, held, about.transform, about.batch) for m, held in new.values())
        label = f"method {self.stage.name}, evaluation"
        self.given.update(zip(new, about.spread(self.task, calls, label), strict=True))

    def _pair(self, model: Variables, held: Held) -> tuple[int, int]:
        return id(self.everyones if same(model, self.everyones) else model), id(held)

    def _question(self, held: Held) -> tuple[object, ...]:
        return self.stage.name, self.more and self.about.uncertainty, id(held)

    def _recalled(self, models: Sequence[Variables], held: Held) -> Asked | None:
        return self.about.known.find(self._question(held), models)

    def _answer(self, model: Variables, held: Held) -> Answer:
        about = self.about
        found = self.given.get(self._pair(model, held))
        return found or answers(self.stage, self.task, model, held, about.transform, about.batch)

    def _fresh(self, models: Sequence[Variables], held: Held) -> Asked:
        about = self.about
        answer = ensemble([self._answer(m, held) for m in models])
        result = score(answer, held.labels)
        if not (self.more and about.uncertainty):
            return Asked(result, torch.empty(0))
        prediction = predicted(answer)
        return Asked(result._replace(trust=trust(prediction, held.labels)), prediction.uncertainty)


def _answers(stage: Method, model: Variables, held: Held, transform: Transform, batch: int, task: Task) -> Answer:
    return answers(stage, task, model, held, transform, batch)


def same(a: Variables, b: Variables | None) -> bool:
    """Whether two models are made of the very same tensors."""
    return b is not None and all(
        x.keys() == y.keys() and all(x[k] is y[k] for k in x) for x, y in zip(a, b, strict=True)
    )
