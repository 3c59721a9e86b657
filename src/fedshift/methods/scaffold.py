"""SCAFFOLD. Karimireddy et al., ICML 2020, https://arxiv.org/abs/1910.06378."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from ..core import tree
from ..core.algorithm import Algorithm
from ..core.average import average
from ..core.bounds import Range
from ..core.card import Card
from ..core.net import Variables
from ..core.task import Cohort, PerParam, Task, Work
from ..core.tree import Tensors


class Server(NamedTuple):
    """The model x and the server's control variate c; both are sent."""

    model: Variables
    c: PerParam


class Client(NamedTuple):
    """The client's control variate c_i."""

    c: PerParam


class Up(NamedTuple):
    """The trained model y_i and the change of c_i."""

    model: Variables
    dc: PerParam


@dataclass(frozen=True)
class Scaffold(Algorithm[Server, Client, Server, Up]):
    """Correct each local gradient by control variates (Algorithm 1, option II)."""

    name: ClassVar[str] = "scaffold"
    card: ClassVar[Card] = Card(
        title="Stochastic controlled averaging",
        citation="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020",
        url="https://arxiv.org/abs/1910.06378",
        idea="Each client estimates how its own gradient differs from everybody's, and corrects its steps for that.",
        sends_up="the whole model, and the change of its control variate (the parameters once more)",
        sends_down="the whole model, and the server's control variate (the parameters once more)",
        stays="each client's control variate",
        unseen="the averaged model",
        deviations=(
            "The paper averages clients uniformly. Under federation.weights = examples, both averages use those "
            "weights, so that c stays the mean of the c_i that the objective asks for; uniform gives the paper.",
            "BatchNorm buffers, which the paper does not treat, are averaged by the protocol's rule.",
            "(x - y_i) / (K lr) equals the mean gradient for plain SGD only. With momentum, weight decay, clipping or "
            "Adam it is the mean step; the steps and the rate are those the round really used.",
        ),
    )
    server_lr: Annotated[float, Range(0, open_low=True), "eta_g, the server's step size"] = 1.0

    def init_server(self, task: Task) -> Server:
        """C starts at zero."""
        model = task.net.variables()
        return Server(model, tree.zeros(model.params))

    def send(self, task: Task, server: Server, client: int | None) -> Server:
        """X and c."""
        return server

    def init_client(self, task: Task, down: Server, before: Any = None) -> Client:
        """c_i starts at zero."""
        return Client(tree.zeros(down.c))

    def correct(self, task: Task, grads: Tensors, work: Work) -> Tensors:
        """g_i(y_i) - c_i + c."""
        return tree.map(lambda g, c_i, c: g - c_i + c, grads, work.client.c, work.down.c)

    def finish(self, task: Task, work: Work) -> tuple[Up, Client]:
        """c_i+ = c_i - c + (x - y_i) / (K lr)."""
        drift = tree.sub(work.down.model.params, work.model.params)
        scale = 1 / (work.round.steps * work.round.lr)
        dc = tree.map(lambda d, c: d * scale - c, drift, work.down.c)
        return Up(work.model, dc), Client(tree.axpy(1.0, dc, work.client.c))

    def aggregate(self, task: Task, server: Server, ups: Iterator[Up], cohort: Cohort) -> Server:
        """X <- x + eta_g mean(y_i - x), and c <- c + |S|/N mean(dc)."""
        mean = average(task, ups, cohort)
        params = tree.blend(self.server_lr, mean.model.params, server.model.params)
        return Server(Variables(params, mean.model.buffers), tree.axpy(cohort.share, mean.dc, server.c))

    def model_for(self, task: Task, down: Server, client: Client | None) -> Variables:
        """The same model everywhere."""
        return down.model
