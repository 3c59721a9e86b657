"""How clients are trained: one loop over rounds, one over a client's steps, and the engines that run them."""

from .base import Engine
from .debug import Debug
from .sequential import Sequential
from .wire import Wire

ENGINES: dict[str, type[Engine]] = {"sequential": Sequential, "wire": Wire, "debug": Debug}

__all__ = ["ENGINES", "Debug", "Engine", "Sequential", "Wire"]
