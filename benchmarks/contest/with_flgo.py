"""FLGo's own FedAvg, on a task whose pictures are the given ones."""

import json
from typing import Any

import flgo
from flgo.algorithm import fedavg
from flgo.experiment.logger import BasicLogger
from flgo.simulator import DefaultSimulator

from .flgo_task import core
from .given import Given, Turns


def take_part(given: Given, turns: Turns) -> None:
    """The runner that `flgo.init` makes."""
    core.GIVEN.append(given)
    turns.wait()
    task = given.folder / "flgo"
    for part in ("record", "log"):
        (task / part).mkdir(parents=True, exist_ok=True)
    (task / "info").write_text(json.dumps({"benchmark": core.__package__, "scene": "horizontal"}))
    names = [f"Client{k}" for k in given.clients]
    (task / "data.json").write_text(json.dumps({"client_names": names}))

    class Logger(BasicLogger):
        """Takes the accuracy after each round and tells the benchmark."""

        def log_once(self, *args: Any, **kwargs: Any) -> None:
            server = self.coordinator
            if not self.output["rounds"]:  # FLGo also asks before the first round
                self.output["rounds"].append(0)
                return
            value = None
            if given.scored:
                value = sum(server.global_test(flag="test")["right"]) / sum(given.about["test"])
            turns.finished(value, server.model.model.state_dict)

    options = {
        "num_rounds": given.rounds, "num_epochs": 1, "batch_size": given.batch, "learning_rate": given.lr,
        "learning_rate_decay": 1.0, "optimizer": "SGD", "proportion": 1.0, "sample": "full", "aggregate": "other",
        "train_holdout": 0.0, "no_log_console": True, "no_tqdm": True, "test_batch_size": given.eval_batch,
    }  # fmt: skip
    model = flgo.convert_model(lambda: given.network())  # a bound method it takes for a class
    flgo.init(str(task), fedavg, options, model=model, Logger=Logger, Simulator=DefaultSimulator).run()
