"""A tiny data set in place of the real ones, here and, with this file as the program, in a process of its own."""

import sys
from pathlib import Path

import pytest
import torch

from fedshift.data import DATASETS, Dataset, Domain, Source

DOMAINS = ("ink", "photo", "scan")


def domain(name: str, size: int) -> Domain:
    """Three classes, each a bright corner; a domain has its own level and noise."""
    shift = DOMAINS.index(name)
    dice = torch.Generator().manual_seed(shift)
    labels = torch.arange(size) % 3
    images = torch.randint(0, 60 + 50 * shift, (size, 3, 8, 8), generator=dice, dtype=torch.uint8)
    for i, label in enumerate(labels.tolist()):
        corner = images[i, :, 4 * (label // 2) :, 4 * (label % 2) :][:, :4, :4]
        corner += 90
    return Domain(name, images, labels)


def load() -> Dataset:
    return Dataset(
        "toy", ("0", "1", "2"), tuple(domain(name, size) for name, size in zip(DOMAINS, (45, 39, 42), strict=True))
    )


TOY = Source("toy", "three domains of bright corners", "made up for tests", "none", DOMAINS, load)
SMALL = ("engine=sequential", "data.name=toy", "model.options.width=4", "local.batch=8", "federation.rounds=3")


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(DATASETS, "toy", TOY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


if __name__ == "__main__":
    from fedshift.cli.main import main

    torch.set_num_threads(1)
    DATASETS["toy"] = TOY
    sys.exit(main(sys.argv[1:]))
