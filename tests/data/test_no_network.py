"""Nothing speaks to the network unless a download is asked for."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedshift

SRC = Path(fedshift.__file__).parent
NETWORK = {
    "aiohttp", "asyncio", "ftplib", "http", "httpx", "imaplib", "nntplib", "poplib", "requests", "smtplib", "socket",
    "socketserver", "ssl", "telnetlib", "urllib", "urllib3", "webbrowser", "xmlrpc", "_socket", "huggingface_hub",
}  # fmt: skip
CALLS = {"urlopen", "urlretrieve", "load_state_dict_from_url", "download_url_to_file", "hub", "create_connection"}

BLOCKED = """
import socket, sys
tried = []
def block(event, args):
    calls = ("connect", "bind", "sendto", "sendmsg", "getaddrinfo", "gethostbyname", "gethostbyaddr", "getnameinfo")
    if event in {f"socket.{call}" for call in calls}:
        tried.append((event, args))
        raise PermissionError(f"blocked: {event}")
sys.addaudithook(block)
def refuse(*args, **options):
    tried.append(("patched", args))
    raise PermissionError("blocked: socket")
"""

EVERYTHING = """
import importlib, pkgutil
import fedshift
for module in pkgutil.walk_packages(fedshift.__path__, "fedshift."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from pathlib import Path
import torch
from fedshift.cli.main import main
from fedshift.data import DATASETS, load
from fedshift.experiment.config import DataConfig, Experiment, FederationConfig, LocalConfig, ModelConfig
from fedshift.experiment.runs import Folder, execute
from fedshift.methods import METHODS
from fedshift.testing import tiny_data
torch.set_num_threads(1)
assert len(load("glyphs").domains) == 6
assert main(["list", "datasets"]) == 0 and all(source.domains for source in DATASETS.values())
config = Experiment(
    method=METHODS["fedavg"](), data=DataConfig(left_out=("domain0",)), model=ModelConfig("small-cnn", {"width": 4}),
    federation=FederationConfig(rounds=1), local=LocalConfig(batch=8),
)
assert len(list(execute(config, Folder(Path("run")), tiny_data()))) == 1
assert not tried, tried
print("quiet")
"""

ASKED = """
from pathlib import Path
from fedshift.core.errors import DataError
from fedshift.data.dataset import Mirror, Source
from fedshift.data.fetch import fetch
assert not tried
try:
    fetch(Source("toy", "", "", "", (), files={"a": (Mirror("http://127.0.0.1:9/"),)}), Path("home"))
except DataError as error:
    assert "blocked" in str(error), error
assert tried
print("blocked")
"""

PATCHES = """
socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
"""


def python(code, folder):
    """What a new interpreter says: there, every import happens after the block."""
    environment = {**os.environ, "FEDSHIFT_CACHE": str(folder), "FEDSHIFT_HOME": str(folder), "no_proxy": "*"}
    environment["PYTHONPATH"] = os.pathsep.join([str(SRC.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_no_network_call_unless_asked(tmp_path):
    assert python(BLOCKED + PATCHES + EVERYTHING, tmp_path) == "quiet"


@pytest.mark.parametrize("block", [BLOCKED, BLOCKED + PATCHES], ids=["hook", "patches"])
def test_the_block_would_have_seen_one(tmp_path, block):
    assert python(block + ASKED, tmp_path) == "blocked"


def names(tree):
    """Every top-level module that is imported, also by a string, and every attribute and name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (("import", alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                yield "import", (node.module or "").split(".")[0]
            yield from (("call", alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module", "__import__"
        ):  # fmt: skip
            yield from (("import", a.value.split(".")[0]) for a in node.args if isinstance(a, ast.Constant) and a.value)
        elif isinstance(node, ast.Attribute | ast.Name):
            yield "call", node.attr if isinstance(node, ast.Attribute) else node.id


def speaks(code):
    return {name for kind, name in names(ast.parse(code)) if name in (NETWORK if kind == "import" else CALLS)}


def test_one_file_imports_what_speaks_to_the_network():
    found = {str(path.relative_to(SRC)): speaks(path.read_text()) for path in SRC.rglob("*.py")}
    assert {path: what for path, what in found.items() if what} == {"data/fetch.py": {"http", "urllib"}}


@pytest.mark.parametrize(
    "code",
    [
        "import urllib.request as web", "from http.client import HTTPResponse", "def f():\n    import socket",
        "importlib.import_module('requests')", "__import__('ssl')", "torch.hub.load('x')", "from torch import hub",
        "from torch.hub import load_state_dict_from_url",
    ],
)  # fmt: skip
def test_the_search_finds_each_way(code):
    assert speaks(code)
