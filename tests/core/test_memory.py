"""Freed memory is kept where the C library is glibc, and nothing happens elsewhere."""

import os
import sys
from types import SimpleNamespace

from fedshift.core import memory


def test_glibc_is_asked_to_keep_what_is_freed(monkeypatch):
    asked = {}
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=asked.__setitem__))
    memory.keep_memory()
    # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD, M_ARENA_MAX
    assert asked == {-4: 0, -1: 2**31 - 1, -2: 64 * 2**20, -8: 1}
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == "1"


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: SimpleNamespace())  # musl has no mallopt
    memory.keep_memory()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(memory.ctypes, "CDLL", None)
    memory.keep_memory()
