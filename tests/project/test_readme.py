"""What the README shows is what the program does."""

import re
import shlex
from pathlib import Path

import pytest

from fedshift import models
from fedshift.cli.main import main, parser
from fedshift.cli.planning import planned
from fedshift.core.net import BATCH_NORM
from fedshift.data import DATASETS
from fedshift.engines import ENGINES
from fedshift.methods import METHODS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMPARISONS = [line for line in re.findall(r"^fedshift ((?:compare|sweep) .*)", TEXT, re.M) if "..." not in line]


def test_its_mistake_is_answered_by_its_sentence(capsys):
    (words, answer) = re.search(r"^\$ fedshift (.*)\n(.*)$", TEXT, re.M).groups()
    assert main(shlex.split(words)) == 2
    assert capsys.readouterr().err == f"{answer}\n"


@pytest.mark.parametrize("line", COMPARISONS)
def test_its_comparisons_can_be_made(line, monkeypatch):
    monkeypatch.chdir(ROOT)
    args = parser().parse_args(shlex.split(line, comments=True))
    args.datasets, args.grid = vars(args).get("datasets"), vars(args).get("grid", [])
    for config in {(c.method.name, c.model.name): c for c in planned(args)}.values():
        module = models.build(config.model.name, (3, 64, 64), 7, **config.model.options)
        assert "batchnorm" not in config.method.card.needs or any(isinstance(m, BATCH_NORM) for m in module.modules())


def test_its_table_names_what_there_is():
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", TEXT, re.M))
    named = {topic: set(re.findall(r"`([\w-]+)`", row)) for topic, row in rows.items()}
    assert named["methods"] == set(METHODS) and named["networks"] == set(models.MODELS)
    assert named["engines"] == set(ENGINES) - {"rehearsed"} and "glyphs" in DATASETS
    assert sum(name.startswith("domainnet") for name in DATASETS) == 5 and "five named variants" in rows["data"]
