"""A thread that works for the tests, and the sizes of its tensors."""

from __future__ import annotations

import queue
import threading

WAYS = ("key", "mode", "key-python", "mode-python")
NATIVE = ("key", "mode")
COUNT = 100_000
NBYTES = 4 * COUNT
ENOUGH_S = 30


class Worker:
    """A thread that does one job after the other, while the thread that gave the job waits."""

    def __init__(self):
        self._jobs, self._done = queue.Queue(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="worker", daemon=True)
        self._thread.start()

    def _work(self):
        while (job := self._jobs.get()) is not None:
            try:
                job()
            finally:
                del job
                self._done.set()

    def do(self, job):
        self._done.clear()
        self._jobs.put(job)
        del job
        assert self._done.wait(ENOUGH_S)

    def end(self):
        self._jobs.put(None)
        self._thread.join(ENOUGH_S)
