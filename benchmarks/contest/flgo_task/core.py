"""How FLGo loads, trains and scores the given pictures."""

from typing import Any

import torch
import torch.nn.functional as F
from flgo.benchmark.base import BasicTaskCalculator, BasicTaskPipe
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ..given import Given, right

GIVEN: list[Given] = []  # one, put here before FLGo looks


class TaskPipe(BasicTaskPipe):
    """From the given files."""

    TaskDataset = TensorDataset

    def load_data(self, running_time_option: dict[str, Any]) -> dict[str, Any]:
        """Each client's pictures; the server has none."""
        given = GIVEN[-1]
        data: dict[str, Any] = {"server": {"test": None}}
        for k, name in enumerate(self.feddata["client_names"]):
            train = given.training(k)
            train.order = given.order(k, 0)  # type: ignore[attr-defined]
            data[name] = {"train": train, "test": given.test(k) if given.scored else None}
        return data

    def distribute(self, task_data: dict[str, Any], objects: list[Any]) -> None:
        """FLGo rounds steps up, and here a last batch of one joins the one before."""
        super().distribute(task_data, objects)
        for client in objects[1:]:
            client.num_steps = len(client.train_data.order)


class TaskCalculator(BasicTaskCalculator):
    """Cross-entropy, and the number of right answers."""

    def get_dataloader(self, dataset: Any, batch_size: int = 64, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        """In the given batches."""
        return DataLoader(dataset, batch_sampler=dataset.order)

    def compute_loss(
        self, model: nn.Module, data: tuple[Tensor, Tensor], *args: Any, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Of one batch."""
        x, y = data
        return {"loss": F.cross_entropy(model(x), y)}

    @torch.no_grad()
    def test(self, model: nn.Module, data: Any, batch_size: int = 64, *args: Any, **kwargs: Any) -> dict[str, int]:
        """Of one client."""
        return {"right": right(model, DataLoader(data, batch_size=batch_size))}
