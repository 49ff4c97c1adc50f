"""Measure the workspace of an estimated program's kernels: run each kernel on zeros, at its sizes or at smaller ones.

A call with small tensors runs once, at its own sizes, and the allocator's events show its workspace. For a larger call,
lengths are halved until it is small. It runs with each combination of these lengths and their halves, so 2^n times for
n lengths. This shows how the workspace grows with each length. Only calls that could raise the peak run.

A kernel may crash when it gets zeros, so calls run in a process of their own. `python -m memwatch.estimate.workspace`
reads calls from its standard input. It writes the key of each call before the call runs. At the end it writes the bytes
that each call held in addition to its results.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import torch

from memwatch._torch.dispatch import OpOverload, base_name_of
from memwatch._torch.fake import fake_mode
from memwatch._torch.profiler import EVENTS_WORK
from memwatch.device_names import is_host
from memwatch.encoding import ONLY_ALLOCATE
from memwatch.replay.measure import measure_workspaces, tensors_in
from memwatch.signal_handlers import pass_on, suppress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memwatch.capture.columns import IntArray
    from memwatch.encoding import Value
    from memwatch.estimate.calls import Call, Calls, Shape
    from memwatch.reading import Reading

_SMALL_BYTES: Final = 16 << 20
"""Most bytes of the tensors of a call that runs. A larger call runs at smaller sizes. A guess."""
_LONGEST_KEPT: Final = 16
"""No length is halved below this, because kernels may use other methods for short lengths. A guess."""
_MOST_RATIO: Final = 4
"""memwatch assumes that workspace is at most so many times the tensors of a call. A call that stays below the peak even
with this workspace does not run. A guess."""
_ALLOWED_S: Final = 20.0
"""Time for all runs of one estimate. A guess."""
_MOST_LENGTHS: Final = 4
"""Lengths of one call that are halved: with four, the call runs 16 times. A guess."""
_TORCH_NAMESPACES: Final = frozenset({"aten", "prims"})
_NEVER_MEASURED: Final = frozenset({"c10d", "_c10d_functional", "_dtensor", "fsdp", "prim", "profiler"})
"""Namespaces of ops that wait for other processes, or that compute nothing."""
_SKIPPED: Final = ONLY_ALLOCATE | {"_local_scalar_dense", "set_", "resize_"}
_BEYOND_S: Final = 60.0
"""Additional time for a process, because it imports torch first, and its last call may end late. A guess."""
_TRIES: Final = 4
"""Processes that are started in turn. If a call ends its process, the next process leaves out this call. A guess."""


@dataclass(frozen=True)
class Workspace:
    """The workspace of kernels, as far as it raises the peak.

    Attributes:
        nbytes: bytes by which the peak is higher than without workspace.
        is_scaled: whether these bytes are computed from runs at smaller sizes.
        unknown: names of ops that may need workspace and did not run.
    """

    nbytes: int
    is_scaled: bool
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class _Scaled:
    """A call that runs at smaller sizes, with the factor by which each length was divided."""

    call: Call
    factors: Mapping[int, int]

    def corners(self) -> Iterator[tuple[int, ...]]:
        """Yield all combinations of 0 and 1, one number per length. 1 means that the length is halved once more."""
        return itertools.product((0, 1), repeat=len(self.factors))

    def at(self, corner: tuple[int, ...]) -> Call:
        """Return the call of a corner."""
        sizes = zip(self.factors.items(), corner, strict=True)
        return self.call.resized({length: length // factor >> halved for (length, factor), halved in sizes})

    def whole_bytes(self, measured: Mapping[tuple[int, ...], int]) -> int | None:
        """Return the workspace at the sizes of the call; None if the small runs do not determine it.

        Assume that workspace is `a + b * L**k` in each halved length L, with unknown a and b. The exponent k is the
        number of times that L occurs in one tensor: 2 if height and width are both L. Runs at l and l / 2 (l = L /
        factor) determine the value at L:

            w(L) = w(l) + (w(l) - w(l / 2)) * (factor**k - 1) / (1 - 0.5**k)

        With several lengths, apply this to each in turn: each corner's weight is the product of its weights.
        """
        nbytes = 0.0
        for corner, corner_bytes in measured.items():
            weight = 1.0
            for (length, factor), halved in zip(self.factors.items(), corner, strict=True):
                times = max(shape.size.count(length) for shape in self.call.shapes())
                beyond = (factor**times - 1) / (1 - 0.5**times)
                weight *= -beyond if halved else 1 + beyond
            nbytes += weight * corner_bytes
        return int(nbytes) if nbytes >= 0 else None


def workspace_at_peak(calls: Calls, reading: Reading) -> Workspace | None:
    """Return the workspace of kernels on a reading's device at its peak; None if it cannot be measured.

    Args:
        calls: the calls, and the op of each.
        reading: the recording of fake tensors.
    """
    peak_bytes = reading.peak_bytes
    if not is_host(reading.device) or not EVENTS_WORK:
        return None
    highest = _highest(calls, reading)
    until_s = time.monotonic() + _ALLOWED_S
    planned: dict[int, _Scaled] = {}
    unknown: dict[str, None] = {}
    for call, number in sorted(calls.different.items(), key=lambda item: -int(highest[item[1]])):
        if not _may_need_workspace(call):
            continue
        if highest[number] + _MOST_RATIO * max(call.nbytes, _bytes_of_tensors(call) or 0) <= peak_bytes:
            continue
        scaled = _shrunk(call) if _may_run_here(call) and time.monotonic() < until_s else None
        if scaled is None:
            unknown[call.op.name()] = None
        else:
            planned[number] = scaled
    found = _measured(planned, until_s - time.monotonic())
    unknown |= {planned[number].call.op.name(): None for number in planned if found.get(number) is None}
    most, is_scaled = peak_bytes, False
    for number, nbytes in found.items():
        if nbytes is not None and highest[number] + nbytes > most:
            most, is_scaled = (
                int(highest[number]) + nbytes,
                any(f > 1 for f in planned[number].factors.values()),
            )
    return Workspace(most - peak_bytes, is_scaled, tuple(unknown))


def _highest(calls: Calls, reading: Reading) -> IntArray:
    """Return the most bytes of tensors that were alive while each call ran, its results included."""
    recorded = reading.part("ops", ["name"])["name"].to_numpy()
    noted, numbers = np.array(calls.ops, dtype=np.int64), np.array(calls.numbers, dtype=np.int64)
    names = np.array([str(call.op) for call in calls.different], dtype=object)
    # `calls.ops` has the number of the latest recorded op. If the call's own op was not recorded, this is an earlier op
    # with another name.
    same = recorded[noted] == names[numbers]
    highest: IntArray = np.zeros(len(names), dtype=np.int64)
    np.maximum.at(highest, numbers[same], _live_of_ops(reading, len(recorded))[noted[same]])
    return highest


def _live_of_ops(reading: Reading, num_ops: int) -> IntArray:
    """Return the most live bytes from the start of each op to the start of the next op.

    This includes the results of the op, which the recorder notes after the op has ended.
    """
    timeline = reading.part("timeline", ["op", "live_bytes"])
    op, live = timeline["op"].to_numpy(), timeline["live_bytes"].to_numpy()
    first = np.searchsorted(op, np.arange(num_ops))
    most: IntArray = live[np.maximum(first - 1, 0)].copy()
    np.maximum.at(most, op[op >= 0], live[op >= 0])
    return most


def _measured(planned: Mapping[int, _Scaled], allowed_s: float) -> dict[int, int | None]:
    """Return the workspace of calls at their sizes, None if the runs do not determine it."""
    variants = {
        f"{number} {corner}": scaled.at(corner)
        for number, scaled in planned.items()
        for corner in scaled.corners()
    }
    found = run_calls(variants, allowed_s)
    wholes: dict[int, int | None] = {}
    for number, scaled in planned.items():
        sizes = {corner: found.get(f"{number} {corner}") for corner in scaled.corners()}
        known = {corner: nbytes for corner, nbytes in sizes.items() if nbytes is not None}
        wholes[number] = scaled.whole_bytes(known) if len(known) == len(sizes) else None
    return wholes


def _shrunk(call: Call) -> _Scaled | None:
    """Return a call whose lengths are halved until it is small; None if the op refuses such sizes."""
    factors: dict[int, int] = {}
    lengths = {length for shape in call.shapes() for length in shape.size if length > _LONGEST_KEPT}
    nbytes = _bytes_of_tensors(call)
    while nbytes is not None and nbytes > _SMALL_BYTES:
        most = len(factors) == _MOST_LENGTHS
        left = [
            each
            for each in (factors if most else lengths)
            if each // factors.get(each, 1) > 2 * _LONGEST_KEPT
        ]
        if not left:
            return None
        length = max(left, key=lambda length: length // factors.get(length, 1))
        tried = {**factors, length: 2 * factors.get(length, 1)}
        made = _bytes_of_tensors(call.resized({each: each // factor for each, factor in tried.items()}))
        if made is None and length in factors:
            return None
        if made is None:
            lengths.discard(length)
        else:
            factors, nbytes = tried, made
    return None if nbytes is None else _Scaled(call, factors)


def _bytes_of_tensors(call: Call) -> int | None:
    """Return the bytes of a call's arguments and results; None if the op refuses the arguments.

    If a result is an argument, as with an in-place op, it counts twice. This is good enough to compare with limits.
    """
    with suppress(Exception), torch.no_grad(), fake_mode():
        positional, keyword = call.filled(_empty)
        made = tensors_in(call.op(*positional, **keyword))
        return call.nbytes + sum(tensor.untyped_storage().nbytes() for tensor in made)
    return None


def _empty(shape: Shape) -> torch.Tensor:
    return torch.empty_strided(shape.size, shape.stride, dtype=shape.dtype, device=shape.device)


def _may_need_workspace(call: Call) -> bool:
    """Return True if the kernel of an op may need workspace.

    Ops that take no tensor, views, and the ops of `_SKIPPED` and `_NEVER_MEASURED` are assumed to need none.
    """
    op: Any = call.op
    return (
        isinstance(op, OpOverload)
        and op.namespace not in _NEVER_MEASURED
        and base_name_of(op) not in _SKIPPED
        and not op.is_view
        and any(True for _ in call.shapes())
    )


def _may_run_here(call: Call) -> bool:
    """Return True for an op of torch itself. An op of another library may do anything, such as write files."""
    return call.op.namespace in _TORCH_NAMESPACES


def run_calls(calls: Mapping[str, Call], allowed_s: float) -> dict[str, int]:
    """Return the workspace of calls by their keys (bytes).

    A call that raises an error, or ends its process, is left out. If `_TRIES` processes fail, the result is empty, and
    the estimate reports the workspace of all these calls as unknown.
    """
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
    except Exception as error:  # an argument cannot be sent, so the workspace of the call stays unknown
        pass_on(error)
        return None


def _in_process(waiting: Mapping[str, bytes], allowed_s: float) -> tuple[dict[str, int] | None, str]:
    """Run calls in a child process. Return its measurements and "". If it failed, return None and its last key."""
    path = os.pathsep.join(each for each in sys.path if each)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "memwatch.estimate.workspace"],
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
    _write_line(key)
    return call.filled(_zeros)


def _zeros(shape: Shape) -> torch.Tensor:
    return torch.empty_strided(shape.size, shape.stride, dtype=shape.dtype, device=shape.device).zero_()


def _write_line(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _op(name: str) -> Any:
    """Return the overload with a name such as `aten.add.Tensor`."""
    return functools.reduce(getattr, name.split("."), torch.ops)


def main() -> None:
    """Run the calls from the standard input; see the description of this module."""
    from memwatch.estimate.calls import Call

    num_threads, allowed_s, waiting = pickle.load(sys.stdin.buffer)  # noqa: S301  # from the process that started this
    torch.set_num_threads(num_threads)
    until_s = time.monotonic() + allowed_s
    calls = {}
    for key, packed in waiting.items():
        name, positional, keyword = pickle.loads(packed)  # noqa: S301
        call = Call(_op(name), positional, keyword)
        calls[key] = call.op, functools.partial(_arguments, key, call, until_s)
    _write_line(measure_workspaces(calls, "cpu"))


if __name__ == "__main__":
    main()
