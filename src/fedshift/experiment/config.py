"""Everything that decides a run's result, and nothing else: its digest names the run."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ..core.algorithm import Algorithm
from ..core.bounds import Choice, Range, Variant
from ..core.errors import ConfigError
from ..core.optim import OPTIMIZERS, SGD, Optimizer, Schedule
from ..data import Protocol, names
from ..data.decode import Fit
from ..data.recipes import RECIPES
from ..engines import ENGINES
from ..eval.adapt import Adapt
from ..eval.evaluate import Unseen
from ..methods import METHODS
from ..methods.fedavg import FedAvg

Option = bool | int | float | str | tuple[int, ...]


@dataclass(frozen=True)
class DataConfig(Protocol):
    """Which images, at which size, through which augmentation, and by which protocol they are dealt to the sites."""

    name: Annotated[str, Choice(names, "data set"), "data set"] = "glyphs"
    size: Annotated[int, Range(1), "side to which pictures are decoded (glyphs has its own, 32)"] = 32
    fit: Annotated[Fit, "crop: shorter side to size, centre crop; squash: both sides to size"] = "crop"
    recipe: Annotated[str, Choice(lambda: RECIPES, "recipe"), "augmentation and normalisation"] = "none"


@dataclass(frozen=True)
class ModelConfig:
    """The network; every method gets the same."""

    name: Annotated[str, "network, as `fedshift list models` shows them"] = "small-cnn"
    options: Annotated[dict[str, Option], "the network's own settings"] = field(default_factory=dict)


@dataclass(frozen=True)
class FederationConfig:
    """Rounds, who takes part, and how models are averaged."""

    rounds: Annotated[int, Range(1), "rounds of the main stage"] = 20
    participation: Annotated[float, Range(0, 1, open_low=True), "share of the sites that take part in a round"] = 1.0
    weights: Annotated[Literal["examples", "uniform"], "how a site counts in an average"] = "examples"
    buffers: Annotated[
        Literal["mean", "local", "pooled"],
        "BatchNorm statistics: averaged, kept at each site (averaged for new sites), or pooled (E[Var] + Var[E])",
    ] = "mean"
    common_init: Annotated[bool, "all sites start from the same initial weights; false: each from its own"] = True


@dataclass(frozen=True)
class LocalConfig:
    """A client's budget in one round."""

    epochs: Annotated[int, Range(1), "passes over the client's images"] = 1
    steps: Annotated[int, Range(0), "batches instead of epochs; 0: by epochs"] = 0
    batch: Annotated[int, Range(1), "images in a batch"] = 32
    sample: Annotated[
        float,
        Range(0, 1, open_low=True),
        "share of a client's images that a round draws afresh, unless the method chooses them itself",
    ] = 1.0
    drop_last: Annotated[bool, "leave out the last, smaller batch of an epoch"] = False
    keep_optimizer: Annotated[bool, "carry momentum over from round to round"] = False


@dataclass(frozen=True)
class EvalConfig:
    """What is measured, and which round is reported."""

    every: Annotated[int, Range(1), "rounds between evaluations; the last round is always evaluated"] = 1
    batch: Annotated[int, Range(1), "images in an evaluation batch"] = 128
    unseen: Annotated[Unseen, "whose model answers at a left-out site"] = "auto"
    point: Annotated[
        Literal["after_aggregation", "after_local"],
        "when each site's own model is scored: as the next round would start, or right after local training",
    ] = "after_aggregation"
    select: Annotated[
        Literal["last", "val"], "report the last round, or the one with the best validation accuracy of the sites"
    ] = "last"
    select_model: Annotated[Literal["own", "global"], "whose validation accuracy: each site's own model's"] = "own"
    select_weights: Annotated[Literal["uniform", "examples"], "how sites count in it"] = "uniform"
    uncertainty: Annotated[bool, "measure calibration and uncertainty, where a round may be reported"] = False
    adapt: Annotated[
        Adapt,
        "how a model adapts to an unseen site's unlabelled images, where a round may be reported: by the method's own "
        "rule, by measuring BatchNorm anew, by less entropy; auto: the method's own, else norm",
    ] = "none"
    adapt_epochs: Annotated[int, Range(1), "passes over these images, of the method's own rule or entropy"] = 1
    adapt_steps: Annotated[int, Range(0), "batches instead of passes; 0: by passes"] = 0
    adapt_rate: Annotated[float, Range(0, open_low=True), "learning rate of entropy, as a share of optimizer.lr"] = 0.1


@dataclass(frozen=True)
class Experiment:
    """One run."""

    method: Annotated[Algorithm, Variant(lambda: METHODS), "method and its own settings"] = FedAvg()  # type: ignore[type-arg]
    seed: Annotated[int, Range(0), "every random number follows from it"] = 0
    data: DataConfig = DataConfig()
    model: ModelConfig = field(default_factory=ModelConfig)
    federation: FederationConfig = FederationConfig()
    local: LocalConfig = LocalConfig()
    optimizer: Annotated[Optimizer, Variant(lambda: OPTIMIZERS), "local optimiser and its settings"] = SGD()
    schedule: Schedule = Schedule()
    eval: EvalConfig = EvalConfig()
    engine: Annotated[str, Choice(lambda: ENGINES, "engine"), "how clients are trained"] = "sequential"
    device: Annotated[Literal["cpu", "cuda"], "where tensors live"] = "cpu"
    precision: Annotated[
        Literal["float32", "float64", "tf32", "bf16"],
        "float32 and float64 are exact; tf32 rounds what a GPU multiplies, bf16 also what it stores on the way",
    ] = "float32"
    checkpoint: Annotated[int, Range(1), "rounds between checkpoints"] = 1

    def __post_init__(self) -> None:
        """Refuse a selection without anything to select by."""
        if self.device == "cpu" and self.engine == "captured":
            raise ConfigError(
                "engine is 'captured' and device 'cpu', expected device 'cuda'; it records steps for a GPU: set "
                "device = 'cuda', or engine = 'sequential'"
            )
        if self.device == "cuda" and self.engine == "fast":
            raise ConfigError(
                "engine is 'fast' and device 'cuda', expected device 'cpu', which it is made for; set device = 'cpu', "
                "or engine = 'captured'"
            )
        if self.device == "cpu" and self.precision == "tf32":
            raise ConfigError(
                "precision is 'tf32' and device 'cpu', where nothing computes in it; please use 'float32'"
            )
        self._check_everybody()
        self._check_adaptation()
        if self.eval.select == "val" and not (self.data.val or self.data.truncate_val):
            raise ConfigError("eval.select is 'val' and data.val is 0; please hold out a share, such as data.val = 0.1")

    def _check_everybody(self) -> None:
        """Refuse what has no meaning for a site that sits out a round."""
        share = self.federation.participation
        if share < 1 and not self.federation.common_init:
            raise ConfigError(
                f"federation.common_init is false and federation.participation {share:g}, so that some sites would "
                "start later, from the average; please set participation = 1"
            )
        if share < 1 and self.eval.point == "after_local":
            raise ConfigError(
                f"eval.point is 'after_local' and federation.participation {share:g}, so that some sites train no "
                "model in a round; please set participation = 1, or point = 'after_aggregation'"
            )

    def _check_adaptation(self) -> None:
        """Refuse adaptation without a site to adapt to, or of models that the method's rule does not start from."""
        if self.eval.adapt != "none" and not (self.data.left_out or self.data.corruptions):
            raise ConfigError(
                f"eval.adapt is {self.eval.adapt!r} and there is no unseen site; please leave a domain out by "
                "data.left_out, name data.corruptions, or set adapt = 'none'"
            )
        if self.eval.adapt == "method" and self.eval.unseen in ("sites", "ensemble"):
            raise ConfigError(
                "eval.adapt is 'method', which starts at the method's model for a new site, and eval.unseen is "
                f"{self.eval.unseen!r}; please set unseen = 'global', or adapt = 'norm' or 'entropy'"
            )
