"""Small tensors and one stream of random numbers: a test that draws draws the same every time."""

import pytest
import torch

torch.set_num_threads(1)  # a second thread only waits
torch.manual_seed(0)  # for what modules draw when they are collected, which is always in one order


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
