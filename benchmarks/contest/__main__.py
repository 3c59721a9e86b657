"""A contestant in a process of its own: `python -m benchmarks.contest NAME FOLDER`, told on stdin what to do."""

import importlib
import os
import sys


def main() -> None:
    """Take the private line to the parent, send whatever a framework prints to stderr, and take part."""
    name, folder, *rest = sys.argv[1:]
    if "keep" in rest:
        from fedshift import keep_memory

        keep_memory()  # before torch is imported
    from .given import FOLDER, Given, Turns

    os.environ[FOLDER] = folder
    line = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    given = Given(folder)
    importlib.import_module(f".{name}", __package__).take_part(given, Turns(line), *rest)


if __name__ == "__main__":
    main()
