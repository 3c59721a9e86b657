"""Trained weights from a file: all or nothing, cast, the classifier aside."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedshift.core.errors import ModelError
from fedshift.models import build, load_weights
from fedshift.models.weights import read_metadata

Tensors = dict[str, Tensor]
SHARED = "resnet50_imagenet.safetensors"


def network(classes: int = 3) -> nn.Module:
    """Something with convolutions, BatchNorm and a classifier."""
    torch.manual_seed(classes)
    return build("small-cnn", (3, 8, 8), classes, width=2)


def other_weights(classes: int = 3) -> Tensors:
    """A full set of tensors unlike those of any fresh network, with the counters set too."""
    state = network(classes).state_dict()
    return {k: torch.rand_like(t) if t.is_floating_point() else t + 7 for k, t in state.items()}


def test_every_tensor_arrives(tmp_path: Path) -> None:
    target, tensors = network(), other_weights()
    save_file(tensors, tmp_path / "w.safetensors")
    report = load_weights(target, tmp_path / "w.safetensors", "classifier")
    assert report.kept == () and set(report.loaded) == set(tensors)
    assert all(torch.equal(t, tensors[k]) for k, t in target.state_dict().items())


def test_half_precision_is_cast_to_the_networks(tmp_path: Path) -> None:
    target, tensors = network(), other_weights()
    half = {k: t.half() if t.ndim == 4 else t for k, t in tensors.items()}
    save_file(half, tmp_path / "w.safetensors")
    load_weights(target, str(tmp_path / "w.safetensors"), "classifier")
    got = target.state_dict()["body.0.0.weight"]
    assert got.dtype == torch.float32 and torch.equal(got, half["body.0.0.weight"].float())


@pytest.mark.parametrize("classes", [None, 9], ids=["absent", "other classes"])
def test_another_classifier_is_left_as_it_was(tmp_path: Path, classes: int | None) -> None:
    target, tensors = network(), other_weights(classes or 3)
    before = {k: t.clone() for k, t in target.state_dict().items()}
    if classes is None:
        tensors = {k: t for k, t in tensors.items() if not k.startswith("classifier.")}
    save_file(tensors, tmp_path / "w.safetensors")
    report = load_weights(target, tmp_path / "w.safetensors", "classifier")
    assert set(report.kept) == {"classifier.weight", "classifier.bias"}
    assert set(report.loaded) == set(before) - set(report.kept)
    for key, t in target.state_dict().items():
        assert torch.equal(t, before[key] if key in report.kept else tensors[key]), key


def without(tensors: Tensors, *names: str) -> Tensors:
    """The same tensors but these."""
    return {k: t for k, t in tensors.items() if k not in names}


BAD: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "missing": (lambda w: without(w, "body.1.0.weight"), "'body.1.0.weight' is missing"),
    "missing buffer": (lambda w: without(w, "body.2.1.running_var"), "'body.2.1.running_var' is missing"),
    "half a classifier": (lambda w: without(w, "classifier.bias"), "'classifier.bias' is missing"),
    "extra": (lambda w: w | {"body.9.weight": torch.ones(1)}, "'body.9.weight' is not in the network"),
    "extra in the classifier": (
        lambda w: w | {"classifier.scale": torch.ones(3)},
        "'classifier.scale' is not in",
    ),
    "shape": (
        lambda w: w | {"body.0.0.weight": torch.ones(2, 3, 5, 5)},
        r"'body.0.0.weight' has shape \(2, 3, 5, 5\) instead of \(2, 3, 3, 3\)",
    ),
    "channels": (
        lambda w: w | {"body.0.1.bias": torch.ones(1)},
        r"'body.0.1.bias' has shape \(1,\) instead of",
    ),
    "classifier of other features": (
        lambda w: w | {"classifier.weight": torch.ones(9, 4), "classifier.bias": torch.ones(9)},
        r"'classifier.weight' has shape \(9, 4\) instead of \(3, 8\)",
    ),
    "integers": (
        lambda w: w | {"body.0.1.weight": torch.ones(2, dtype=torch.int64)},
        "'body.0.1.weight' is torch.int64 instead of torch.float32",
    ),
    "NaN": (
        lambda w: w | {"body.0.0.weight": torch.full((2, 3, 3, 3), float("nan"))},
        r"'body.0.0.weight' holds NaN or infinity as torch.float32; expected",
    ),
    "infinity once cast": (
        lambda w: w | {"body.0.1.weight": torch.full((2,), 1e300, dtype=torch.float64)},
        "'body.0.1.weight' holds NaN or infinity as torch.float32",
    ),
    "infinite statistics": (
        lambda w: w | {"body.2.1.running_mean": torch.full((8,), -float("inf"))},
        "'body.2.1.running_mean' holds NaN or infinity",
    ),
    "negative variances": (
        lambda w: w | {"body.2.1.running_var": -w["body.2.1.running_var"]},
        "'body.2.1.running_var' holds variances below 0",
    ),
    "NaN in a classifier that fits": (
        lambda w: w | {"classifier.bias": torch.full((3,), float("nan"))},
        "'classifier.bias' holds NaN or infinity",
    ),
    "many": (lambda w: without(w, *[k for k in w if k.startswith("body.0")]), "is missing and 3 more"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_does_not_fit_changes_nothing(tmp_path: Path, case: str) -> None:
    target = network()
    before = {k: t.clone() for k, t in target.state_dict().items()}
    spoil, sentence = BAD[case]
    save_file(spoil(other_weights()), tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match=sentence) as caught:
        load_weights(target, tmp_path / "w.safetensors", "classifier")
    assert "w.safetensors does not fit" in str(caught.value) and "choose a file" in str(caught.value)
    assert all(torch.equal(t, before[k]) for k, t in target.state_dict().items())


def test_unreadable_files(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00not a header")
    for path in (damaged, tmp_path / "absent.safetensors", tmp_path):
        with pytest.raises(ModelError, match="cannot be read"):
            load_weights(network(), path, "classifier")
        with pytest.raises(ModelError, match="cannot be read"):
            read_metadata(path)


def test_the_classifier_must_be_named_rightly(tmp_path: Path) -> None:
    save_file(other_weights(), tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match="no tensors under 'fc'"):
        load_weights(network(), tmp_path / "w.safetensors", "fc")


def test_a_network_built_with_weights_reports_them(tmp_path: Path) -> None:
    torch.manual_seed(1)
    source = build("resnet18", (3, 32, 32), 4)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    torch.manual_seed(2)
    same = build("resnet18", (3, 32, 32), 4, weights=str(tmp_path / "w.safetensors"))
    assert same.loaded is not None and len(same.loaded.loaded) == 122 and not same.loaded.kept
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(same.eval()(x), source.eval()(x))
    with pytest.raises(ModelError, match=r"'conv1.weight' has shape"):
        build("resnet18", (3, 32, 32), 4, small_input=True, weights=str(tmp_path / "w.safetensors"))


def test_a_classifier_made_otherwise_is_passed_over(tmp_path: Path) -> None:
    """A file of the plain network fits the one with `latent`; one of the latter brings its head along."""
    plain = build("resnet18", (3, 32, 32), 4).state_dict()
    save_file(plain, tmp_path / "w.safetensors")
    torch.manual_seed(2)
    fresh = build("resnet18", (3, 32, 32), 4, latent=8).state_dict()
    torch.manual_seed(2)
    narrow = build("resnet18", (3, 32, 32), 4, latent=8, weights=str(tmp_path / "w.safetensors"))
    assert narrow.loaded is not None and all(name.startswith("fc.") for name in narrow.loaded.kept)
    for key, t in narrow.state_dict().items():
        assert torch.equal(t, (fresh if key.startswith("fc.") else plain)[key]), key
    save_file(narrow.state_dict(), tmp_path / "n.safetensors")
    same = build("resnet18", (3, 32, 32), 4, latent=8, weights=str(tmp_path / "n.safetensors"))
    assert all(torch.equal(t, narrow.state_dict()[key]) for key, t in same.state_dict().items())
    with pytest.raises(ModelError, match=r"'fc.out.weight' has shape \(4, 8\) instead of \(4, 9\)"):
        build("resnet18", (3, 32, 32), 4, latent=9, weights=str(tmp_path / "n.safetensors"))


def test_of_a_head_for_other_classes_what_fits_is_taken(tmp_path: Path) -> None:
    """With `latent`, the layer before the classifier and its statistics do not depend on the classes."""
    given = build("resnet18", (3, 32, 32), 4, latent=8).state_dict()
    given = {k: t + 0.25 if t.is_floating_point() else t for k, t in given.items()}
    save_file(given, tmp_path / "w.safetensors")
    other = build("resnet18", (3, 32, 32), 7, latent=8, weights=str(tmp_path / "w.safetensors"))
    assert other.loaded is not None and set(other.loaded.kept) == {"fc.out.weight", "fc.out.bias"}
    assert all(torch.equal(t, given[k]) for k, t in other.state_dict().items() if not k.startswith("fc.out."))


def test_a_file_that_names_its_strides_is_believed(tmp_path: Path) -> None:
    path = str(tmp_path / "w.safetensors")
    state = build("resnet50", (3, 32, 32), 2).state_dict()
    save_file(state, path, {"stride_in": "conv1 of each stage"})
    with pytest.raises(ModelError, match=r"strides on conv1, found stride_on='conv2'.*set stride_on = 'conv1'"):
        build("resnet50", (3, 32, 32), 2, weights=path)
    assert build("resnet50", (3, 32, 32), 2, weights=path, stride_on="conv1").loaded is not None
    save_file(state, path)
    assert build("resnet50", (3, 32, 32), 2, weights=path).loaded is not None


@pytest.fixture
def imagenet() -> Path:
    """The ImageNet ResNet-50, where the data folder has it."""
    folder = os.environ.get("FEDSHIFT_DATA")
    if not folder:
        pytest.skip("FEDSHIFT_DATA is not set: give the folder that holds " + SHARED)
    if not (path := Path(folder) / SHARED).is_file():
        pytest.skip(f"{path} is not there")
    return path


def test_imagenet_resnet50(imagenet: Path) -> None:
    torch.manual_seed(0)
    net = build("resnet50", (3, 64, 64), 7, stride_on="conv1", weights=str(imagenet))
    tensors = load_file(imagenet)
    assert tensors["conv1.weight"].dtype == torch.float16
    assert set(tensors) == set(net.state_dict()) - {"fc.weight", "fc.bias"}
    assert net.loaded is not None and set(net.loaded.kept) == {"fc.weight", "fc.bias"}
    assert all(p.dtype == torch.float32 for p in net.parameters())
    assert torch.equal(net.state_dict()["conv1.weight"], tensors["conv1.weight"].float())
    z = net.eval().features(torch.randn(4, 3, 64, 64))
    assert torch.isfinite(z).all() and z.min() >= 0
    assert 0.1 < z.mean() < 1 and 1 < z.max() < 100
    with pytest.raises(ModelError, match="stride_on = 'conv1'"):
        build("resnet50", (3, 64, 64), 7, weights=str(imagenet))


def test_imagenet_resnet50_with_the_layer_before_the_head(imagenet: Path) -> None:
    net = build("resnet50", (3, 64, 64), 7, stride_on="conv1", weights=str(imagenet), latent=512)
    assert net.loaded is not None and {name.split(".")[0] for name in net.loaded.kept} == {"fc"}
    assert set(net.loaded.loaded) == set(load_file(imagenet))
    z = net.eval().features(torch.randn(2, 3, 64, 64))
    assert z.shape == (2, 512) and net.head(z).shape == (2, 7) and bool(z.abs().mean() > 0.01)
