"""Runs in processes of one thread each, as many as there are cores: the quickest way on a CPU."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from .config import Experiment
from .crew import End, Told
from .runs import Folder
from .worker import answer, ask

COMMAND = (sys.executable, "-P", "-m", "fedshift.experiment.worker")
# Read when torch loads. A worker must not make a context of its own on a GPU that it does not use.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """One process, and the run that it is at, if any."""

    def __init__(self, command: Sequence[str], lines: "SimpleQueue[tuple[Worker, str]]") -> None:
        self.run = ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        package = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
        # In a session of its own: Ctrl-C is for the parent, who tells the workers.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, encoding="utf-8",
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": path}, start_new_session=True,
        )  # fmt: skip
        self._listener = Thread(target=self._listen, args=(lines,), daemon=True)
        self._listener.start()

    def _listen(self, lines: "SimpleQueue[tuple[Worker, str]]") -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # a killed process may leave half a line
                lines.put((self, line))
        lines.put((self, ""))

    def begin(self, config: Experiment, folder: Folder) -> bool:
        """Ask for a run; false if nobody is there to hear it."""
        try:
            print(ask(config, folder), file=self.process.stdin, flush=True)
        except OSError:
            return False
        self.run = folder.path.name
        return True

    def death(self) -> End:
        """Why it is gone in the middle of a run."""
        code = self.process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        if code == -signal.SIGKILL:
            return End("crashed", "its process was killed (SIGKILL), as a system does that runs out of memory")
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return End("crashed", ": ".join([f"its process was ended {how}", *last]))

    def tell_to_end(self) -> None:
        """It saves what it is at."""
        self.process.terminate()

    def close(self) -> None:
        """Nothing of it is left; who wants its state saved waits for it before."""
        self.process.kill()
        self.process.wait()
        self._listener.join()
        for file in (self.process.stdin, self.process.stdout, self._errors):
            with suppress(OSError):
                file and file.close()


class Processes:
    """A worker for each run under way; one that is done with its run takes another."""

    def __init__(self, room: int, command: Sequence[str] = COMMAND) -> None:
        self.room = room
        self._command = command
        self._lines: SimpleQueue[tuple[Worker, str]] = SimpleQueue()
        self._workers: list[Worker] = []

    def start(self, config: Experiment, folder: Folder) -> None:
        """By a worker that is free, or a new one."""
        for worker in self._workers:
            if not worker.run and worker.begin(config, folder):
                return
        worker = Worker(self._command, self._lines)
        self._workers.append(worker)
        if not worker.begin(config, folder):
            worker.run = folder.path.name  # its end, which is on its way, says why

    def hear(self) -> Told:
        """Whoever has something to say."""
        while True:
            worker, line = self._lines.get()
            name = worker.run
            if not name:  # nobody misses a worker that had nothing to do
                self._dismiss([worker] if worker in self._workers else [])
                continue
            what = answer(line) if line else worker.death()
            if isinstance(what, End):
                worker.run = ""
                if not line or what.kind == "memory":  # a process that was short of memory keeps what it has
                    self._dismiss([worker])
            return Told(name, what)

    def stop(self) -> None:
        """All at once, each with what it is at; interrupted again, they are killed."""
        self._dismiss(list(self._workers))

    def _dismiss(self, workers: list[Worker]) -> None:
        try:
            for worker in workers:
                worker.tell_to_end()
            for worker in workers:
                worker.process.wait()
        finally:
            for worker in workers:
                worker.close()
                self._workers.remove(worker)
