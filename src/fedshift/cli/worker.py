"""`python -m fedshift.cli.worker`: what `sweep` starts for each core; see `experiment/worker.py`."""

import sys

from ..experiment.worker import main
from .memory import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()
    sys.exit(main())
