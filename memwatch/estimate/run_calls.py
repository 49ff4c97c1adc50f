"""Run calls in a process of their own, for a kernel that is given zeros may end the process that runs it.

`python -m memwatch.estimate.run_calls` reads calls from its standard input, writes the key of each before it runs, and
in the end what all of them held beyond their results.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from memwatch.replay.measure import measure_workspaces
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memwatch.encoding.values import Value
    from memwatch.estimate.calls import Call, Shape

_BEYOND_S: Final = 60.0
"""How long a process may take beyond what its calls are allowed: it imports torch, and a call may have begun."""
_TRIES: Final = 4
"""Processes that are started: each but the last may end at a call, which the next leaves out."""


def run_calls(calls: Mapping[str, Call], allowed_s: float) -> dict[str, int]:
    """Return the workspace of calls by their keys (bytes). Calls that refuse, or end the process, are left out."""
    packed = {key: _packed(call) for key, call in calls.items()}
    waiting = {key: each for key, each in packed.items() if each is not None}
    for _ in range(_TRIES):
        if not waiting:
            break
        found, last = _in_process(waiting, allowed_s)
        if found is not None:
            return found
        waiting.pop(last, None)
    return {}


def _packed(call: Call) -> bytes | None:
    try:
        return pickle.dumps((str(call.op), call.positional, call.keyword))
    except Exception as error:  # a value that cannot be sent: what the call needs is not known
        pass_on(error)
        return None


def _in_process(waiting: Mapping[str, bytes], allowed_s: float) -> tuple[dict[str, int] | None, str]:
    """Return the measurements of a process, or None if it failed, and the key that it had reached."""
    path = os.pathsep.join(each for each in sys.path if each)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "memwatch.estimate.run_calls"],
            input=pickle.dumps((torch.get_num_threads(), allowed_s, dict(waiting))),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
            timeout=allowed_s + _BEYOND_S,
        )
        ended_well, written = done.returncode == 0, done.stdout
    # a kernel that does not return is left out, like one that ends the process
    except subprocess.TimeoutExpired as late:
        ended_well, written = False, late.stdout or b""
    lines = written.decode().splitlines()
    if ended_well and lines:
        return cast("dict[str, int]", json.loads(lines[-1])), ""
    return None, json.loads(lines[-1]) if lines else ""


def _arguments(key: str, call: Call, until_s: float) -> tuple[list[Value], dict[str, Value]]:
    if time.monotonic() > until_s:
        raise TimeoutError
    _tell(key)
    return call.filled(_zeros)


def _zeros(shape: Shape) -> torch.Tensor:
    return torch.empty_strided(shape.size, shape.stride, dtype=shape.dtype, device=shape.device).zero_()


def _tell(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _op(name: str) -> Any:
    """Return the overload of a name, as `aten.add.Tensor`."""
    return functools.reduce(getattr, name.split("."), torch.ops)


def main() -> None:
    """Run what stands in the standard input."""
    from memwatch.estimate.calls import Call

    num_threads, allowed_s, waiting = pickle.load(sys.stdin.buffer)  # noqa: S301  # from the process that started this
    torch.set_num_threads(num_threads)
    until_s = time.monotonic() + allowed_s
    calls = {}
    for key, packed in waiting.items():
        name, positional, keyword = pickle.loads(packed)  # noqa: S301
        call = Call(_op(name), positional, keyword)
        calls[key] = call.op, functools.partial(_arguments, key, call, until_s)
    _tell(measure_workspaces(calls, "cpu"))


if __name__ == "__main__":
    main()
