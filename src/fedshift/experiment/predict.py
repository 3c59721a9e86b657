"""What a run's model says of pictures that nobody has labelled, and which of them it had better not be asked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import tree
from ..core.errors import CheckpointError, ConfigError, nearest
from ..core.net import Variables
from ..data import Dataset
from ..data.federation import Held
from ..data.pictures import Pictures
from ..data.unpack import Progress
from ..engines.loop import State
from ..eval.adapt import Adapt, Rule
from ..eval.score import answers, ensemble
from ..eval.uncertainty import Prediction, predicted
from .checkpoint import load_checkpoint
from .config import Experiment
from .runs import Folder
from .setup import Setup, adapter_for, set_up


class Threshold(NamedTuple):
    """Above `value` a picture is flagged; of the sites' own `images` held-out pictures of a `part` few lie there."""

    value: float
    images: int
    part: str


class Predictions(NamedTuple):
    """Answers to pictures, and how they came about."""

    prediction: Prediction
    doubt: Tensor  # each picture's uncertainty under the model as it was before it adapted, which the threshold is for
    threshold: Threshold
    whose: str
    rule: Rule | None  # by which the model was adapted to the pictures first

    @property
    def flagged(self) -> Tensor:
        """Which pictures are too unsure: not as an adapted model sees it, which may have been made sure of them."""
        return self.doubt > self.threshold.value


@dataclass(frozen=True)
class Trained:
    """A run's last saved state, ready to answer."""

    config: Experiment
    setup: Setup
    state: State
    classes: tuple[str, ...]

    @classmethod
    def of(cls, folder: Folder, data: Dataset, config: Experiment) -> "Trained":
        """The state of a run's folder, on the device of `config`."""
        if not folder.checkpoint.exists():
            raise CheckpointError(
                f"{folder.path}: found no saved round, expected a run that has made one; go on with it by "
                f"`fedshift resume {folder.path}`."
            )
        setup = set_up(config, data)
        state, _ = load_checkpoint(folder.checkpoint, config.method, setup.task.net)
        if state.stage + 1 < len(config.method.stages()):
            raise CheckpointError(
                f"{folder.path}: found a run that has not reached its main stage, expected one that has; go on with it "
                f"by `fedshift resume {folder.path}`."
            )
        device = torch.device(config.device)
        server, memory, before = (
            tree.map(lambda t: t.to(device), part) for part in (state.server, state.memory, state.before)
        )
        return cls(config, setup, replace(state, server=server, memory=memory, before=before), data.classes)

    def predict(
        self, pictures: Pictures, site: str | None, adapt: Adapt, share: float, tell: Progress | None = None
    ) -> Predictions:
        """Answers by a site's own model or, without one, by the rule for a new site, perhaps adapted to the pictures.

        `share` of the sites' own held-out pictures have an uncertainty above the threshold. Theirs, and those of
        `pictures` that are held against it, are the model's before it adapts.
        """
        evaluator, task = self.setup.evaluator, self.setup.task
        sites = [held.site for held in evaluator.federation.test]
        if site is not None and site not in sites:
            raise ConfigError(
                f"--site: found {site!r}, expected a site of this run ({', '.join(sites)}){nearest(site, sites)}."
            )
        models = evaluator.speaker(self.setup.method, task, self.state, site).models
        device = torch.device(self.config.device)
        held = Held(site or "new", pictures, torch.zeros(len(pictures), dtype=torch.int64, device=device))
        alone = site is not None or len(models) > 1
        adapter = adapter_for(self.config, task, evaluator.transform, adapt, alone=alone)
        threshold = self._threshold(models, site, share, tell)
        found = before = self._asked(models, held, tell)
        if adapter is not None:
            stage = self.setup.method.stages()[-1]
            new = adapter.rule == "method"
            starts = [stage.send(task, self.state.server, None)] if new else models
            found = self._asked([adapter(stage, task, start, held) for start in starts], held, tell)
        whose = f"the model of site {site}" if site else "the model for a new site"
        whose = f"the mean probability of the {len(models)} sites' models" if len(models) > 1 else whose
        rule = adapter.rule if adapter else None
        return Predictions(found, before.uncertainty, threshold, whose, rule)

    def _asked(self, models: Sequence[Variables], held: Held, tell: Progress | None = None) -> Prediction:
        about, stage = self.setup.evaluator, self.setup.method.stages()[-1]
        given = [answers(stage, self.setup.task, m, held, about.transform, about.batch, tell) for m in models]
        return predicted(ensemble(given))

    def _threshold(
        self, models: Sequence[Variables], site: str | None, share: float, tell: Progress | None
    ) -> Threshold:
        """The quantile over validation pictures or, without any, test pictures of the sites that the models know."""
        federation = self.setup.evaluator.federation
        for part, all_held in (("validation", federation.val), ("test", federation.test)):
            known = [held for held in all_held if len(held.labels) and site in (None, held.site)]
            if known:
                doubt = torch.cat([self._asked(models, held, tell).uncertainty for held in known])
                return Threshold(quantile(doubt, 1 - share), len(doubt), part)
        raise ConfigError(
            "predict: found no held-out picture of the sites to choose a threshold by, expected some; choose a run "
            "with data.val or data.test above 0."
        )


def quantile(values: Tensor, share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = values.sort().values
    place = -int(-(share * len(ordered)) // 1) - 1  # the smallest k with k + 1 >= share * n
    return float(ordered[min(max(place, 0), len(ordered) - 1)])
