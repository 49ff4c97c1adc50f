"""The process of a file of tests: see `conftest.py`."""

from __future__ import annotations

import gc
import importlib
import json
import signal
import sys
import traceback

import pretend
import pretend.backend  # from here on this process has the accelerator
import torch

TIME_LIMIT_S = 240  # the planner may have to compile its kernels first


def run() -> None:
    """Run the tests that the arguments name; write the error of each, with the variables of its calls."""
    signal.alarm(TIME_LIMIT_S)
    module, calls = importlib.import_module(sys.argv[1]), json.loads(sys.argv[2])
    for name, function, arguments in calls:
        error = ""
        try:
            getattr(module, function)(**arguments)
        except BaseException as raised:
            below = raised.with_traceback(raised.__traceback__.tb_next)
            error = "".join(traceback.TracebackException.from_exception(below, capture_locals=True).format())
            raised.__traceback__ = None
        sys.stdout.write(f"outcome {json.dumps([name, error])}\n")
        sys.stdout.flush()
        clean_up()


def clean_up() -> None:
    """Leave no tensor, cached segment, limit or held stream to the next test."""
    gc.collect()
    pretend.record_history(False)
    for device in range(torch.accelerator.device_count()):
        pretend.set_limit(device, 1 << 62)
        for stream in (0, 1):
            pretend.hold(device, stream, False)
    torch.accelerator.empty_cache()
    pretend.reset_peaks()
