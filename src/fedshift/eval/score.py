"""How well a model does on one site's images."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from ..core.algorithm import Algorithm
from ..core.net import Variables
from ..core.task import Task
from ..data.augment import Transform
from ..data.federation import Held

Method = Algorithm[Any, Any, Any, Any]


class Score(NamedTuple):
    """Share of right answers, and mean cross-entropy, over `n` images."""

    accuracy: float
    loss: float
    n: int


def logits(method: Method, task: Task, model: Variables, held: Held, transform: Transform, batch: int) -> torch.Tensor:
    """The method's answers, batch by batch; whatever adapts on the way starts afresh at each site."""
    out = []
    with torch.no_grad():
        for index in torch.split(torch.arange(len(held.labels)), batch):
            images = held.pictures.take(index, held.labels.device)
            answer, model = method.predict(task, model, transform.test(images))
            out.append(answer.logits)
    return torch.cat(out)


def score(answers: torch.Tensor, held: Held) -> Score:
    """Accuracy and loss of logits."""
    right = (answers.argmax(1) == held.labels).double().mean()
    return Score(float(right), float(F.cross_entropy(answers.double(), held.labels)), len(held.labels))


def ensemble(answers: list[torch.Tensor]) -> torch.Tensor:
    """The logarithm of the mean of the models' probabilities."""
    stacked = torch.stack([torch.log_softmax(a.double(), 1) for a in answers])
    return torch.logsumexp(stacked, 0) - torch.log(torch.tensor(float(len(answers)), dtype=torch.float64))


def mean_score(scores: list[Score]) -> Score:
    """The plain mean over models of their scores on the same images."""
    n = len(scores)
    return Score(sum(s.accuracy for s in scores) / n, sum(s.loss for s in scores) / n, scores[0].n)
