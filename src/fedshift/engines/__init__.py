"""How clients are trained: one loop over rounds, one over a client's steps, and the engines that run them."""

from .base import Engine
from .captured import Captured, Rehearsed
from .debug import Debug
from .fast import Fast
from .sequential import Sequential
from .wire import Wire

ENGINES: dict[str, type[Engine]] = {cls.name: cls for cls in (Sequential, Fast, Captured, Wire, Debug, Rehearsed)}

__all__ = ["ENGINES", "Captured", "Debug", "Engine", "Fast", "Rehearsed", "Sequential", "Wire"]
