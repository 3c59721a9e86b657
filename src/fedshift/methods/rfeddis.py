"""RFedDis. Wang et al., 2023, https://arxiv.org/abs/2301.12798."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from ..core.card import Card
from ..core.errors import ConfigError
from ..core.evidence import belief_loss, combined_loss, divergence
from ..core.heads import Fused, Summed, absent, two_heads, within
from ..core.keeping import Keeping, Own, Shared
from ..core.net import BATCH_NORM, Part, Variables
from ..core.task import Answer, Batch, Loss, Round, Site, Task, Work


class Ramp(NamedTuple):
    """lambda_u = lambda_d = min(1, t / T) in round t of T, counted from 0."""

    weight: Tensor


@dataclass(frozen=True)
class RFedDis(Keeping):
    """Two heads on one encoder, one shared and one local, kept unlike, whose opinions are fused by their evidence."""

    name: ClassVar[str] = "rfeddis"
    card: ClassVar[Card] = Card(
        title="Reliable disentangling with evidential fusion",
        citation="Wang et al., Reliable Federated Disentangling Network for Non-IID Domain Feature, 2023",
        url="https://arxiv.org/abs/2301.12798",
        idea="A global head is shared, a local one is each site's own, and a loss keeps their features unlike. Each "
        "gives evidence for the classes; fused by Dempster's rule it is a prediction with its uncertainty.",
        sends_up="encoder and global head: the bytes of the plain network, plus a hidden layer where its head had "
        "none (share_global_head = false: the encoder; report_norm = false: without BatchNorm layers)",
        sends_down="encoder and global head without BatchNorm layers (share_global_head = false: the encoder)",
        stays="each client's local head and all its BatchNorm layers",
        unseen="a new site's local head is an opinion without evidence: the averaged global head answers alone, with "
        "averaged BatchNorm layers (report_norm or share_global_head = false: none)",
        deviations=(
            "The release for AlexNet shares what has a name that its heads do not have, so the convolutions alone: "
            "share_global_head = false. Its network for digits shares the global head, as the paper says.",
            "The paper has no model for a new site. BatchNorm layers are uploaded for that model alone and come back "
            "to no client; report_norm = false keeps them at home, as in the paper.",
            "dis = sym adds the divergence's two directions, as the release; paper is the printed one, KL(local || "
            "global). kl_reduction = element is the release's mean over a feature's dimensions, by which this loss is "
            "always near 1 and its gradient thousands of times smaller. The batch is averaged before exp(-K), as in "
            "the release; dis_mean = outside averages after.",
            "ce = logits is the release's softmax; Eq. 9 prints belief masses: ce = beliefs.",
            "Both weights are t / T in round t of T, as in the release: neither term in the first round. The paper "
            "says that they grow from 0. With more local epochs, T is still the number of rounds.",
            "Table III: evidential = false is direct summation, ce = off is without L_CE; its first rows are `local` "
            "and `fedbn`. Table IV is local.epochs, for equal compute with fewer federation.rounds.",
            "The paper averages uniformly; here federation.weights decides, for every method alike.",
            "A head is all that follows the convolutions' flattening; where that is a single layer, each head gets a "
            "hidden one as wide, whose output is its feature. The local head is drawn apart from the global one.",
        ),
    )
    evidential: Annotated[bool, "fuse evidence and train it by L_Un; false: sum the heads' logits"] = True
    ce: Annotated[Literal["logits", "beliefs", "off"], "L_CE of each head: its softmax, its beliefs, none"] = "logits"
    dis: Annotated[Literal["sym", "paper", "off"], "L_Dis: both directions of the divergence, one, none"] = "sym"
    kl_reduction: Annotated[Literal["sample", "element"], "a divergence's sum over dimensions, or mean"] = "sample"
    dis_mean: Annotated[Literal["inside", "outside"], "a batch's mean of K, or of exp(-K)"] = "inside"
    share_global_head: Annotated[bool, "average the global head; false: each client has its own"] = True
    report_norm: Annotated[bool, "upload shared parts' BatchNorm layers, for the model of a new site"] = True

    def __post_init__(self) -> None:
        """Refuse other losses on heads that weigh no evidence."""
        if not self.evidential and self.ce != "logits":
            raise ConfigError(
                f"evidential is false and ce is {self.ce!r}: summed heads learn from the cross-entropy of their sum "
                "alone; set ce to 'logits'."
            )

    def surgery(self, module: nn.Module) -> nn.Module:
        """Two heads."""
        return two_heads(module, Fused() if self.evidential else Summed())

    def _kept(self, task: Task) -> frozenset[str]:
        return task.net.under(*BATCH_NORM) | self._heads(task)

    def _heads(self, task: Task) -> frozenset[str]:
        return within(task.net, ("local_head",) if self.share_global_head else ("local_head", "global_head"))

    def _reported(self, task: Task) -> frozenset[str]:
        return self._kept(task) - self._heads(task) if self.report_norm else frozenset()

    def _stand_in(self, task: Task) -> Part:
        return absent(task.net)

    def begin(self, task: Task, down: Shared, client: Own | None, round: Round, site: Site) -> Work:
        """The weights of this round's terms."""
        work = super().begin(task, down, client, round, site)
        like = next(iter(work.model.params.values()))
        return work._replace(aux=Ramp(like.new_full((), min(1.0, round.number / round.total))))

    def loss(self, task: Task, work: Work, batch: Batch) -> Loss:
        """L_Un + L_CE + lambda_d L_Dis; with direct summation, the cross-entropy of the sum in the place of both."""
        out, ramp = task.net(work.model, batch.x, train=True, taps=("join",)), work.aux.weight
        ours, own = pair = out.taps["join"]
        value = F.cross_entropy(out.logits, batch.y) if not self.evidential else combined_loss(pair, batch.y, ramp)
        if self.evidential and self.ce != "off":
            each = F.cross_entropy if self.ce == "logits" else belief_loss
            value = value + each(ours, batch.y) + each(own, batch.y)
        if self.dis != "off":
            value = value + ramp * self._likeness(*out.features.chunk(2, 1))
        return Loss(value, out.buffers, work.aux)

    def _likeness(self, ours: Tensor, own: Tensor) -> Tensor:
        """L_Dis = exp(-K), K between the softmax over dimensions of both heads' features."""
        p, q = own.log_softmax(1), ours.log_softmax(1)
        k = divergence(p, q) + (divergence(q, p) if self.dis == "sym" else 0)
        k = k / ours.shape[1] if self.kl_reduction == "element" else k
        return k.mean().neg().exp() if self.dis_mean == "inside" else k.neg().exp().mean()

    def predict(self, task: Task, model: Variables, x: Tensor) -> tuple[Answer, Variables]:
        """Logits ln(e + 1) and the fused evidence e; where heads are summed, logits alone."""
        logits = task.net(model, x, train=False).logits
        return Answer(logits, logits.expm1() if self.evidential else None), model
