"""The protocol in words says what is out of the ordinary, and copes with runs from before it could be said."""

from typing import Any

from fedshift.report.comparison import Comparison
from fedshift.report.records import load
from fedshift.report.words import protocol_words

from .conftest import Write, record


def words(write: Write, **changes: Any) -> dict[str, str]:
    run = load(write("-".join(changes) or "plain", [record(3, {"a": 0.5}, {})], changes=changes))
    return protocol_words(Comparison((run,)))


def test_starts_points_and_draws_are_named_where_they_are_unusual(write: Write) -> None:
    plain = words(write)
    assert "initial weights" not in plain["Rounds"] and "drawn" not in plain["Rounds"]
    assert plain["Reported"] == "the last round"
    odd = words(write, **{"federation.common_init": False, "local.sample": 0.35, "eval.point": "after_local"})
    assert odd["Rounds"].endswith("each site starts from initial weights of its own")
    assert "on 35% of a site's images, drawn afresh" in odd["Rounds"]
    assert odd["Reported"] == "the last round; sites' own models as they are right after local training"
