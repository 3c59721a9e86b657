"""pfl-research's FederatedAveraging on its simulated backend."""

from collections.abc import Iterator
from itertools import count, cycle
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from .given import Given, Turns


class Network(nn.Module):
    """What pfl asks of a module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Of one batch."""
        self.net.train()
        return F.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, test: bool = False) -> dict[str, Weighted]:
        """Of test pictures alone: pfl also asks for the training pictures before its first round."""
        if not test:
            return {}
        self.net.eval()
        return {"accuracy": Weighted(int((self.net(x).argmax(1) == y).sum()), len(y))}


class Whole(PyTorchModel):
    """pfl averages parameters alone; with this the statistics of BatchNorm too, as everybody does here."""

    @property
    def variable_map(self) -> dict[str, Tensor]:
        """All that is averaged."""
        if not hasattr(self, "_whole"):
            buffers = {k: b for k, b in self.pytorch_model.named_buffers() if b.is_floating_point()}
            self._whole = {**super().variable_map, **buffers}
        return self._whole


class Shuffled(PyTorchTensorDataset):
    """A client's pictures, in the given batches."""

    def __init__(self, given: Given, client: int, number: int) -> None:
        super().__init__(given.training(client).tensors, user_id=str(client))
        self.given, self.client, self.number = given, client, number

    def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
        """Shuffled here, since pfl leaves that to its user."""
        for rows in self.given.order(self.client, self.number):
            yield [tensor[rows] for tensor in self.raw_data]


class Score(TrainingProcessCallback[Any]):
    """The averaged model on every client's test pictures, and the end of a round."""

    def __init__(self, given: Given, turns: Turns) -> None:
        self.given, self.turns = given, turns
        self.tests = [given.test(k).tensors for k in given.clients] if given.scored else []
        self.data = [PyTorchTensorDataset(test, eval_kwargs={"test": True}) for test in self.tests]

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Once a round."""
        params, right = NNEvalHyperParams(local_batch_size=self.given.eval_batch), 0.0
        for test in self.data:
            values = dict(model.evaluate(test, eval_params=params))
            right += sum(v.overall_value * len(test) for v in values.values())
        value = right / sum(self.given.about["test"]) if self.data else None
        self.turns.finished(value, model.pytorch_model.net.state_dict)
        return False, Metrics()


def take_part(given: Given, turns: Turns) -> None:
    """All clients in every round."""
    turns.wait()
    net = Network(given.network())
    floats = [*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())]
    model = Whole(net, torch.optim.SGD, torch.optim.SGD(floats, lr=1.0))
    rounds = [count() for _ in given.clients]

    def client(k: int) -> Shuffled:
        return Shuffled(given, k, next(rounds[k]))

    data = FederatedDataset(client, cycle(given.clients).__next__)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=given.rounds,
            evaluation_frequency=given.rounds + 1,
            train_cohort_size=len(given.train),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=given.lr, local_batch_size=given.batch
        ),
        callbacks=[Score(given, turns)],
    )
