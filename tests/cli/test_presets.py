"""A preset's own values for a method reach the runs, and give way to what a user asks for."""

from argparse import Namespace

import pytest

from fedshift.cli.driving import configuration
from fedshift.cli.planning import planned


@pytest.mark.parametrize("form", [["method=hfedf"], ["method.name=hfedf"]])
def test_a_run_has_the_values_of_its_data_set(form):
    method = {"name": "hfedf", "server_lr": 1e-3, "server_wd": 1e-3, "ema": 0.75}
    assert configuration(None, form, "hfedf:vlcs")["method"] == method
    assert configuration(None, [*form, "method.ema=0.5"], "hfedf:vlcs")["method"] == method | {"ema": 0.5}
    assert configuration(None, ["method=fedavg"], "hfedf:vlcs")["method"] == {"name": "fedavg"}
    assert "method" not in configuration(None, [], "hfedf:vlcs")


def test_a_configuration_file_names_the_method(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('method = "hfedf"\n')
    assert configuration(str(file), [], "hfedf:office-home")["method"]["ema"] == 0.75
    file.write_text('[method]\nname = "hfedf"\nema = 0.85\n')
    assert configuration(str(file), [], "hfedf:office-home")["method"]["ema"] == 0.85


def test_each_method_of_a_comparison_has_its_own():
    methods = "fedavg, hfedf, hfedf(ema=0.9)"
    rest = {"config": None, "set": [], "seeds": None, "datasets": None, "grid": []}
    plan = planned(Namespace(preset="hfedf:vlcs", methods=methods, leave_out="Caltech101", **rest))
    assert [p.method.name for p in plan] == ["fedavg", "hfedf", "hfedf"]
    assert [p.method.ema for p in plan[1:]] == [0.75, 0.9] and all(p.method.server_wd == 1e-3 for p in plan[1:])
