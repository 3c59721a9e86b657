"""Rules of the house that a linter does not know."""

import ast
import sys
from pathlib import Path

import pytest

import fedshift
from fedshift.core.algorithm import Algorithm, Averaging
from fedshift.engines.debug import HOOKS
from fedshift.methods import METHODS

SRC = Path(fedshift.__file__).parent
TRAINING = ("core", "methods", "models", "engines", "data", "eval", "experiment")
ALLOWED = {"torch", "numpy", "safetensors", "PIL", "fedshift"} | set(sys.stdlib_module_names)
LAZY = {"models/external.py": {"timm", "torchvision"}}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def files(package):
    return sorted((SRC / package).rglob("*.py"))


@pytest.mark.parametrize("package", TRAINING)
def test_the_training_path_needs_four_packages(package):
    for path in files(package):
        allowed = ALLOWED | LAZY.get(str(path.relative_to(SRC)), set())
        odd = {name for name in imports(path) if not name.startswith(".")} - {
            name for name in imports(path) if name.split(".")[0] in allowed
        }
        assert not odd, f"{path.relative_to(SRC)} imports {sorted(odd)}"


def test_a_method_imports_the_core_alone():
    for path in files("methods"):
        if path.name != "__init__.py":
            mine = {name for name in imports(path) if name.startswith(".")}
            assert all(name.startswith("..core") for name in mine), f"{path.name} imports {sorted(mine)}"


def test_each_method_file_is_in_the_table_once():
    modules = [cls.__module__.rsplit(".", 1)[1] for cls in METHODS.values()]
    assert sorted(modules) == sorted(p.stem for p in files("methods") if p.stem != "__init__")


def test_sizes():
    for path in files("methods"):
        assert len(path.read_text().splitlines()) <= 120, f"{path.name} has more than 120 lines"
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= 40, f"{path.relative_to(SRC)}: {node.name} has {length} lines"
    assert len((SRC / "core/algorithm.py").read_text().splitlines()) <= 150


def test_thirteen_hooks_and_no_more():
    public = {k for k, v in vars(Algorithm).items() if callable(v) and not k.startswith("_")}
    assert public == set(HOOKS) and len(HOOKS) == 13
    assert {k for k, v in vars(Averaging).items() if callable(v) and not k.startswith("_")} <= set(HOOKS)


def test_one_loop_each_and_no_pickle():
    text = {p.relative_to(SRC): p.read_text() for p in SRC.rglob("*.py")}
    for path, source in text.items():
        for word in ("torch.load(", "import pickle", "pickle.", "DataLoader(", "deepcopy("):
            own = path.parts[0] in ("experiment", "models") or path.name in (
                "presets.py",
                "workers.py",
            )  # once in a run
            allowed = word == "deepcopy(" and own
            assert allowed or word not in source, f"{path} uses {word}"
    steps = [p for p, source in text.items() if "site.batches(" in source]
    assert steps == [Path("engines/base.py")]
