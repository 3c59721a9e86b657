"""The table of networks: build one by name, and list what can be set on it."""

from collections.abc import Callable
from functools import partial
from inspect import Parameter, formatannotation, signature
from typing import Any, Literal, NamedTuple, get_args, get_origin

from ..core.errors import ModelError, nearest
from .alexnet import AlexNetFDSE, AlexNetFedBN
from .digits_cnn import DigitsCNN
from .external import LIBRARIES
from .feddca_cnn import FedDCACNN
from .hfedf_cnn import HFedFCNN
from .mlp import MLP
from .network import Image, Network
from .resnet import ResNet18, ResNet50
from .small_cnn import SmallCNN
from .weights import Loaded, load_weights

__all__ = ["MODELS", "Image", "Loaded", "Network", "Option", "build", "load_weights", "options"]

MODELS: dict[str, type[Network]] = {
    "mlp": MLP,
    "small-cnn": SmallCNN,
    "hfedf-cnn": HFedFCNN,
    "digits-cnn": DigitsCNN,
    "feddca-cnn": FedDCACNN,
    "alexnet-fedbn": AlexNetFedBN,
    "alexnet-fdse": AlexNetFDSE,
    "resnet18": ResNet18,
    "resnet50": ResNet50,
}


class Option(NamedTuple):
    """What a network's option may be, and what it is if not set."""

    annotation: Any
    default: Any


def build(name: str, image: Image, classes: int, **chosen: object) -> Network:
    """The network called `name`, or `timm:NAME` or `torchvision:NAME`; `image` is (channels, height, width).

    Weights are drawn from torch's global generator, which the caller seeds.
    """
    library, _, model = name.partition(":")
    known = options(name)
    checked = {key: _checked(name, key, value, known) for key, value in chosen.items()}
    make: Callable[..., Network] = partial(LIBRARIES[library], model=model) if model else MODELS[name]
    return make(image, classes, **checked)


def options(name: str) -> dict[str, Option]:
    """The options of the network called `name`: the keyword-only arguments of its class."""
    library, _, model = name.partition(":")
    found = LIBRARIES.get(library) if model else MODELS.get(name)
    if found is None:
        hint = nearest(name, MODELS) or "."
        raise ModelError(
            f"Unknown model {name!r}, expected one of {', '.join(MODELS)}, timm:NAME, torchvision:NAME{hint}"
        )
    arguments = signature(found, eval_str=True).parameters.values()
    return {a.name: Option(a.annotation, a.default) for a in arguments if a.kind is Parameter.KEYWORD_ONLY}


def _checked(model: str, key: str, value: object, known: dict[str, Option]) -> object:
    """`value` if it suits this option, a list as a tuple; else an error that says what would."""
    if key not in known:
        valid = ", ".join(known) or "none"
        raise ModelError(f"Model {model!r} has no option {key!r}, its options: {valid}{nearest(key, known) or '.'}")
    kind = known[key].annotation
    if not _fits(value, kind):
        raise ModelError(f"Option {key!r} of model {model!r} is {value!r}, expected {_wanted(kind)}; set it so.")
    return tuple(value) if isinstance(value, list) else value


def _wanted(kind: object) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    return formatannotation(kind) + (" of at least 1" if kind is int or int in get_args(kind) else "")


def _fits(value: object, kind: object) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, (list, tuple)) and all(_fits(v, get_args(kind)[0]) for v in value)
    if kind is int:  # Every integer option is a size.
        return type(value) is int and value > 0
    return type(value) in ((int, float) if kind is float else (kind,))
