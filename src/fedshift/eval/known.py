"""What was found of models that have not changed since, so that nobody is asked the same again."""

import weakref
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from torch import Tensor

from ..core import tree
from ..core.net import Variables

T = TypeVar("T")
Key = tuple[Hashable, tuple[tuple[int, int], ...]]


class Known(Generic[T]):
    """Findings of the last evaluation by question and models; a model is known as long as its own tensors live."""

    def __init__(self) -> None:
        self._before: dict[Key, tuple[list[weakref.ref[Tensor]], T]] = {}
        self._now: dict[Key, tuple[list[weakref.ref[Tensor]], T]] = {}

    def turn(self) -> None:
        """A new evaluation begins: what the last one did not ask for is forgotten."""
        self._before, self._now = self._now, {}

    def find(self, question: Hashable, models: Sequence[Variables]) -> T | None:
        """What was found for these very tensors, if they were not written since."""
        key = _key(question, models)
        refs, found = self._now.get(key) or self._before.get(key) or ([], None)
        if not refs or any(ref() is None for ref in refs):
            return None
        self._now[key] = (refs, found)  # type: ignore[assignment]
        return found

    def keep(self, question: Hashable, models: Sequence[Variables], found: T) -> None:
        """For the next evaluation."""
        refs = [weakref.ref(t) for model in models for _, t in tree.leaves(model)]
        self._now[_key(question, models)] = (refs, found)


def _key(question: Hashable, models: Sequence[Variables]) -> Key:
    return question, tuple((id(t), t._version) for model in models for _, t in tree.leaves(model))
