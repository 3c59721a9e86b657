"""Flower's simulation: a ServerApp and a ClientApp exchange messages through Ray, one client at a time."""

import os
from collections.abc import Iterable
from functools import cache
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from .given import FOLDER, Given, Turns, right, train

app = ClientApp()


@cache
def here() -> tuple[Given, nn.Module]:
    """Made once in each process."""
    given = Given(os.environ[FOLDER])
    return given, given.network()


def received(message: Message, context: Context) -> tuple[Given, nn.Module, int]:
    """The model as it was sent, and which client this is."""
    given, net = here()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return given, net, int(context.node_config["partition-id"])


@app.train()
def on_train(message: Message, context: Context) -> Message:
    """A client's epoch."""
    given, net, k = received(message, context)
    train(net, given.loader(k, int(message.content["config"]["server-round"]) - 1), given.lr)
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": given.train[k]})}
    return Message(content=RecordDict(content), reply_to=message)


@app.evaluate()
def on_evaluate(message: Message, context: Context) -> Message:
    """The averaged model on a client's test pictures."""
    given, net, k = received(message, context)
    n = given.about["test"][k]
    metrics = {"accuracy": right(net, given.test_loader(k)) / n, "num-examples": n}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


class Strategy(FedAvg):
    """FedAvg that says when a round is over."""

    def __init__(self, given: Given, turns: Turns) -> None:
        clients = len(given.train)
        super().__init__(
            fraction_evaluate=float(given.scored),
            min_train_nodes=clients,
            min_evaluate_nodes=clients if given.scored else 0,
            min_available_nodes=clients,
        )
        self.given, self.turns, self.sent = given, turns, 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """To everybody; counts what goes down, for training and evaluation."""
        self.sent = (1 + self.given.scored) * len(self.given.train) * arrays.count_bytes()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """The average; counts what came up."""
        replies = list(replies)
        self.sent += sum(reply.content["arrays"].count_bytes() for reply in replies)
        self.arrays, metrics = super().aggregate_train(server_round, replies)
        return self.arrays, metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The end of a round."""
        metrics = super().aggregate_evaluate(server_round, replies)
        value = float(metrics["accuracy"]) if metrics else None
        self.turns.finished(value, self.arrays.to_torch_state_dict, self.sent)
        return metrics


def take_part(given: Given, turns: Turns) -> None:
    """One actor with all threads, as all others have them."""
    turns.wait()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Strategy(given, turns)
        arrays = ArrayRecord(given.network().state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=given.rounds)

    ray: dict[str, Any] = {"num_cpus": given.threads}
    if len(str(given.folder)) < 30:  # sockets lie there, and their names must be short
        ray["_temp_dir"] = str(given.folder / "ray")
    resources = {"num_cpus": given.threads, "num_gpus": 0.0}
    run_simulation(server, app, len(given.train), backend_config={"client_resources": resources, "init_args": ray})
