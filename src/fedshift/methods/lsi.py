"""LSI. Palakkadavath et al., ICDM 2025, https://arxiv.org/abs/2512.10224."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.average import average
from ..core.card import Card
from ..core.importance import average_by_importance
from ..core.latent import by_batch
from ..core.net import Variables
from ..core.task import Answer, Batch, Cohort, Empty, Loss, Task, Work
from ..core.translating import QUICK, Down, Server, Translating, Up, domain_of
from ..core.translator import translate


@dataclass(frozen=True)
class LSI(Translating):
    """Invert the clients' heads, learn to translate between their latents, train against that, weigh by importance."""

    name: ClassVar[str] = "lsi"
    card: ClassVar[Card] = Card(
        title="Latent space inversion and importance weights",
        citation="Palakkadavath et al., Federated Domain Generalization with Latent Space Inversion, ICDM 2025",
        url="https://arxiv.org/abs/2512.10224",
        idea="The server invents latents that each client's head accepts, and learns a translator between clients from "
        "them; clients keep features near their translations. Parameters are averaged one by one, by how much each "
        "client's answers depend on them.",
        sends_up="the whole model, and Omega, as many numbers as parameters once more, which the paper does not count "
        "(importance = false: the model). Before, in each of local_rounds: the head; if it has no BatchNorm, mean and "
        "variance of the client's latents; labels = prior: its class counts; start = mean: the whole model",
        sends_down="in each round the whole model and the translator (lambda_di = 0: the model); before: nothing",
        stays="before the rounds, the model that each client trains alone; then nothing",
        unseen="the averaged model",
        deviations=(
            "Heads are inverted in evaluation, each batch from fresh noise and a fresh Adam; in the release they are "
            "in training, so that their statistics become those of the noise, and one client's latents start "
            "another's.",
            "A head without BatchNorm has no statistics: its client measures them, on plain images, and tells.",
            "Clients train alone for local_rounds rounds of the protocol's budget; the release says 30 epochs, the "
            "paper nothing. Their encoders are dropped, as in the release: round 0 sends the network as built.",
            "Synthetic labels are uniform, as released: the paper's prior tells the server counts. 6,400 latents a "
            "client, as Table VI has them; the text's 200 are about z_batches = 6.",
            "The inversion's weights are the paper's, with squared norms; the release has 1e-2, 1e-3, norm_pow = 1.",
            "Eq. 9 prints logarithms; release and default are WGAN-GP. The penalty mixes real and translated latents "
            "row by row; the release's shapes broadcast to all pairs. 10,000 iterations are those of the checkpoint "
            "that the release loads, out of gan_iters = 100000 with gan_decay = 50000.",
            "A batch holds one class, as printed, or all (batches = mixed, with class_term = 0.1 as released). The "
            "translator has no last tanh, which would keep it within (-1, 1).",
            "The divergence is the mean over features (release); the paper's sum is so many times larger. lambda_di = "
            "0 and importance = false are Table IV's switches, lambda_di is Table VII's.",
            "Eq. 18's 1/m beside weights that sum to one would shrink the model each round; it is left out, as in the "
            "release. Omega is the release's, with absolute values: signed sums (Eq. 17) may cancel. Buffers are "
            "averaged by images. Without importance the paper averages uniformly; here federation.weights decides.",
            "Weights need the sum of Omega over clients: a secure sum would also have to carry twice the model.",
            "Domains are numbered by the sites' sorted names everywhere; in the release latents and clients differ. A "
            "client that missed the stage 'heads' trains without divergence, and nobody translates to its domain.",
            "Evaluation uses running statistics. The release never leaves training mode, so test images normalise "
            "each other: eval_bn = batch shows what that is worth, and is no fair protocol.",
        ),
        neutral={"lambda_di": 0.0, "importance": False},
        quick=QUICK,
    )
    div: Annotated[Literal["mean", "sum"], "squares of z - G(z) over the features: their mean, or sum"] = "mean"
    detach_target: Annotated[bool, "no gradient through the translated latents"] = False
    importance: Annotated[bool, "average parameter by parameter, by importance (S5)"] = True
    eval_bn: Annotated[Literal["running", "batch"], "statistics in evaluation; batch is a diagnostic alone"] = "running"

    def send(self, task: Task, server: Server, client: int | None) -> Down:
        """The model; for clients also the translator."""
        if client is None or not self.lambda_di:
            return Down(server.model, {}, {})
        own = torch.tensor([domain_of(task)[task.sites[client]]], device=server.known.device)
        return Down(server.model, server.gan.g, {"own": own, "known": server.known})

    def init_client(self, task: Task, down: Down, before: Any = None) -> Empty:
        """Nothing is remembered."""
        return Empty()

    def loss(self, task: Task, work: Work, batch: Batch) -> Loss:
        """S4: CE + lambda_di Div(z, G(z, d, d'))."""
        out = task.net(work.model, batch.x, train=True)
        value = F.cross_entropy(out.logits, batch.y)
        if not self.lambda_di:
            return Loss(value, out.buffers, work.aux)
        far = self._divergence(work.down, out.features)
        return Loss(value + self.lambda_di * far, out.buffers, work.aux, {"divergence": far})

    def _divergence(self, down: Down, z: Tensor) -> Tensor:
        """The target d' is uniform over the domains that are known, for each image; it may be d itself."""
        own, known = down.domains["own"], down.domains["known"]
        target = ((torch.rand(len(z), len(known), device=z.device) + 1) * known).argmax(1)
        moved = translate(self, down.g, z, own, target)
        squares = (z - (moved.detach() if self.detach_target else moved)).square()
        return known[own][0] * (squares.mean() if self.div == "mean" else squares.sum(1).mean())

    def finish(self, task: Task, work: Work) -> tuple[Up, Empty]:
        """The model goes up, and what it depends on."""
        assert work.site is not None
        omega = self.measure(task, work.model, work.site, work.round.seed) if self.importance else {}
        return Up(work.model, omega), Empty()

    def aggregate(self, task: Task, server: Server, ups: Iterator[Up], cohort: Cohort) -> Server:
        """S5: phi^j = sum_d W_d^j phi_d^j."""
        if not self.importance:
            return server._replace(model=average(task, (up.model for up in ups), cohort))
        return server._replace(model=average_by_importance(task, ups, cohort, self.omega_temper))

    def model_for(self, task: Task, down: Down, client: Empty | None) -> Variables:
        """The same model everywhere."""
        return down.model

    def predict(self, task: Task, model: Variables, x: Tensor) -> tuple[Answer, Variables]:
        """By running statistics, unless the diagnostic is asked for."""
        return super().predict(task, model, x) if self.eval_bn == "running" else by_batch(task, model, x)
