"""How well a model does on one site's images."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.algorithm import Algorithm
from ..core.net import Variables
from ..core.task import Answer, Task
from ..data.augment import Transform
from ..data.federation import Held
from .uncertainty import Trust, mean_trust, predicted

Method = Algorithm[Any, Any, Any, Any]


class Score(NamedTuple):
    """Share of right answers, and mean cross-entropy, over `n` images; and how far to trust them, if asked for."""

    accuracy: float
    loss: float
    n: int
    trust: Trust | None = None

    def record(self) -> dict[str, Any]:
        """As a run's records hold it."""
        row = {"accuracy": self.accuracy, "loss": self.loss, "n": self.n}
        return row if self.trust is None else row | {"trust": self.trust._asdict()}


def answers(
    method: Method,
    task: Task,
    model: Variables,
    held: Held,
    transform: Transform,
    batch: int,
    tell: Callable[[int, int], None] | None = None,
) -> Answer:
    """The method's answers, batch by batch; whatever adapts on the way starts afresh at each site."""
    out, n = list[Answer](), len(held.labels)
    with torch.no_grad():
        for index in torch.split(torch.arange(n), batch):
            images = held.pictures.take(index, held.labels.device)
            answer, model = method.predict(task, model, transform.test(images))
            out.append(answer)
            if tell is not None:
                tell(int(index[-1]) + 1, n)
    evidence = [a.evidence for a in out if a.evidence is not None]
    return Answer(torch.cat([a.logits for a in out]), torch.cat(evidence) if evidence else None)


def score(answer: Answer, labels: Tensor) -> Score:
    """Accuracy and loss of logits."""
    right = (answer.logits.argmax(1) == labels).double().mean()
    return Score(float(right), float(F.cross_entropy(answer.logits.double(), labels)), len(labels))


def ensemble(answers: Sequence[Answer]) -> Answer:
    """The logarithm of the mean of the models' probabilities; one model's answer as it is."""
    if len(answers) == 1:
        return answers[0]
    stacked = torch.stack([_log_probabilities(a) for a in answers])
    return Answer(torch.logsumexp(stacked, 0) - torch.log(torch.tensor(float(len(answers)), dtype=torch.float64)))


def _log_probabilities(answer: Answer) -> Tensor:
    if answer.evidence is None:
        return torch.log_softmax(answer.logits.double(), 1)
    return predicted(answer).probabilities.log()


def mean_score(scores: Sequence[Score]) -> Score:
    """The plain mean over models of their scores on the same images."""
    n = len(scores)
    accuracy, loss = sum(s.accuracy for s in scores) / n, sum(s.loss for s in scores) / n
    return Score(accuracy, loss, scores[0].n, mean_trust([s.trust for s in scores]))
