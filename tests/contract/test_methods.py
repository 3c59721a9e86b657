"""Every method of the table, on every small network, through every check; a method added is tested without a word."""

import pytest

from fedshift.methods import METHODS
from fedshift.testing import CHECKS, MODELS, Case, quick


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_contract(method: str, model: str, check: str) -> None:
    CHECKS[check](Case(quick(METHODS[method]()), model))
