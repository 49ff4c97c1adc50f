"""A process that has imported everything and runs `memwatch` in a fork of itself for every line of input."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys

import torch

import memwatch.report.export
import memwatch.report.terminal
from memwatch.cli import main

torch.set_num_threads(1)
memwatch.profile()  # loads what the first one loads
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the program may have left running
    sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
    sys.stdout.flush()
else:
    sys.exit(0)

# From here on the child is what `python -m memwatch WORDS` would be.
os.setsid()
signal.alarm(60)  # a program that hangs fails its test
os.chdir(request["folder"])
for number, name in enumerate(("/dev/null", request["stdout"], request["stderr"])):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
sys.argv = [os.path.join(os.path.dirname(memwatch.__file__), "__main__.py"), *request["words"]]
sys.exit(main())
