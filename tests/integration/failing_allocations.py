"""Run a training step once for each allocation in it, and let that allocation fail.

    python failing_allocations.py KIND RECORDER INTERCEPT [--every K] [--first N]

KIND selects the allocations that fail:

- `torch`: blocks of torch's CPU allocator;
- `native`: memory that the C++ recorder takes from the C library;
- `objects`: Python objects that the C++ recorder makes;
- `lines`: each line of memwatch's own Python code that makes objects raises MemoryError.

Each run is a fork of a process that has run the step before. For `torch` the program must end as it does without
memwatch when the same allocation fails. For the others it must not notice. In all cases the block can be left and the
summary can be made. The last line of the output is JSON: how many allocations failed, and the differences.
"""

from __future__ import annotations

import argparse
import ctypes
import dis
import gc
import json
import linecache
import os
import pathlib
import re
import sys
import traceback

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memwatch

PACKAGE = str(pathlib.Path(memwatch.__file__).parent)
MAKES_NOTHING = {
    "BINARY_SUBSCR", "CACHE", "CHECK_EXC_MATCH", "CONTAINS_OP", "COPY", "COPY_FREE_VARS", "DELETE_FAST",
    "EXTENDED_ARG", "IS_OP", "JUMP_BACKWARD", "JUMP_FORWARD", "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP",
    "LOAD_ASSERTION_ERROR", "LOAD_ATTR",
    "LOAD_CLOSURE", "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_METHOD", "NOP", "POP_EXCEPT",
    "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE",
    "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_TRUE", "POP_TOP", "PRECALL",
    "PUSH_EXC_INFO", "PUSH_NULL", "RAISE_VARARGS", "RERAISE", "RESUME", "RETURN_GENERATOR", "RETURN_VALUE",
    "STORE_FAST", "SWAP",
}  # fmt: skip
"""Instructions of Python that need no memory. A line of these alone cannot run out of it."""
CALLS_OF_OTHERS = re.compile(
    r"\b(kind\.call|original|beneath|handler|function|call|leave|run|set_eval_frame|redispatch|by_program)\(.*\*?args"
    r"|exclude_key\(|reference\(\)|gc\.(enable|disable)\(\)|set_eval_frame\(callback\)|release\.append\("
    r"|handler\(calling, args|context\.leave\(|with self\._harmless"
    r"|isinstance\(|_below\(|saved_tensors_of|_outer\[\d\]\(|\.detach\(\)"
)
"""Lines that make a call of the program's own, which may fail without memwatch, or call C that needs no memory."""


class Square(torch.autograd.Function):
    """A function of the program's own, which saves a tensor."""

    @staticmethod
    def forward(ctx, x):
        """Return the square."""
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient."""
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Program:
    """A model, its optimizer and its step: the same numbers whenever it is made."""

    def __init__(self):
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)
        self.norm = nn.LayerNorm(16)
        modules = nn.ModuleList([self.first, self.last, self.norm])
        self.optimizer = torch.optim.Adam(modules.parameters())
        self.data = torch.arange(32.0).view(4, 8)

    def step(self):
        """Return the loss of a forward, a backward and a step of the optimizer."""
        hidden = checkpoint(self.norm, self.first(self.data), use_reentrant=False)
        loss = Square.apply(self.last(hidden.relu()).t()).sum() + torch.tensor([0.5]).sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


class Shim:
    """The library of failing_allocations.c, loaded before all others."""

    def __init__(self):
        self._library = ctypes.CDLL(None)

    def fail(self, kind, number):
        """Count allocations of a kind from now on, and let one of them fail; 0 for none."""
        maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
        recorders = [line.split() for line in maps if "_recorder" in line]
        bounds = [int(bound, 16) for line in recorders for bound in line[0].split("-")] or [0]
        self._library.failing_start(
            {"torch": 1, "native": 2, "objects": 3}[kind],
            ctypes.c_long(number),
            ctypes.c_void_p(min(bounds)),
            ctypes.c_void_p(max(bounds)),
        )

    def stop(self):
        """Let none fail any more; return how many were counted."""
        return self._library.failing_stop()


class Lines:
    """Raises MemoryError at one line of memwatch's."""

    def __init__(self):
        self._number = self.count = 0
        self._lines = {}
        self.where = None

    def fail(self, kind, number):
        """Count lines from now on, and raise at one of them."""
        self._number, self.count = number, 0
        sys.settrace(self._called)

    def stop(self):
        """Raise no more; return how many lines were counted."""
        sys.settrace(None)
        return self.count

    def _called(self, frame, event, argument):
        return self._traced if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _traced(self, frame, event, argument):
        if event == "line" and frame.f_lineno in self._making_lines(frame.f_code):
            self.count += 1
            if self.count == self._number:
                self.where = f"{frame.f_code.co_filename[len(PACKAGE) :]}:{frame.f_lineno}"
                raise MemoryError
        return self._traced

    def _making_lines(self, code):
        lines = self._lines.get(code)
        if lines is None:
            lines, line = set(), None
            for each in dis.get_instructions(code):
                line = each.starts_line or line
                text = linecache.getline(code.co_filename, line or 0)
                if each.opname not in MAKES_NOTHING and not CALLS_OF_OTHERS.search(text):
                    lines.add(line)
            self._lines[code] = lines
        return lines


def outcome_of(step, failing, kind, number):
    """Return how a step ends, and how many allocations of the kind were in it."""
    failing.fail(kind, number)
    try:
        result = step()
    except BaseException as error:
        count = failing.stop()
        return (type(error).__name__, str(error)), count, traceback.format_exc()
    return ("no error", repr(result)), failing.stop(), ""


def in_fork(act):
    """Call a function in a fork of this process; return its result, or the way the fork ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as output:
            json.dump(act(), output)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as output:
        text = output.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(text) if status == 0 else {"outcome": f"ended with {status}"}


def recorded(program, failing, kind, number, options):
    """Run the step in a block; return how the step and the block ended."""
    found = {"outcome": None}
    stage = "entering"
    try:
        with memwatch.profile(**options) as prof:
            found["outcome"], found["count"], found["trace"] = outcome_of(program.step, failing, kind, number)
            found["where"] = getattr(failing, "where", None)
            stage = "leaving"
        stage = "summary"
        prof.summary()
        stage = "done"
        found["notes"] = [note.text for note in prof.capture.notes]
    except BaseException:
        found["error"] = traceback.format_exc()
    found["stage"] = stage
    return found


def is_of_allocator(outcome):
    """Return True for the error of torch's allocator."""
    return outcome[0] == "RuntimeError" and "DefaultCPUAllocator: can't allocate memory" in outcome[1]


def plain(program, failing, kind, number):
    """Run the step without a block."""
    outcome, count, _ = outcome_of(program.step, failing, kind, number)
    return {"outcome": outcome, "count": count}


def main():
    """Let each allocation fail, and print the differences."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["torch", "native", "objects", "lines"])
    parser.add_argument("recorder", choices=["native", "python"])
    parser.add_argument("intercept", choices=["key", "mode"])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--last", type=int, default=1 << 60)
    parser.add_argument("--holders", action="store_true")
    given = parser.parse_args()
    options = {"intercept": given.intercept, "holders": given.holders}
    os.environ["MEMWATCH_NATIVE"] = "1" if given.recorder == "native" else "0"
    torch.set_num_threads(1)
    failing = Lines() if given.kind == "lines" else Shim()
    warm = Program()
    warm.step()
    with memwatch.profile(**options) as prof:
        warm.step()
    prof.summary()
    try:
        torch.empty(1 << 60)
    except RuntimeError:
        pass
    program = Program()
    gc.collect()
    gc.freeze()
    run = lambda number: in_fork(lambda: recorded(program, failing, given.kind, number, options))  # noqa: E731
    count = run(0)["count"]
    untouched = in_fork(lambda: plain(program, failing, given.kind, 0))["outcome"]
    numbers = range(given.first, min(count, given.last) + 1, given.every)
    different = []
    for number in numbers:
        found = run(number)
        wanted = untouched
        if given.kind == "torch":
            wanted = in_fork(lambda number=number: plain(program, failing, given.kind, number))["outcome"]
        is_same = found["outcome"] == wanted
        if given.kind == "torch" and (given.recorder == "python" or given.intercept == "mode"):
            # This recorder makes tensors of numbers, and so does torch under a mode. So the n-th block is another one,
            # and torch's own error is enough.
            is_same = found["outcome"] == untouched or is_of_allocator(found["outcome"])
        if not is_same or found.get("stage") != "done":
            found |= {"number": number, "wanted": wanted}
            different.append(found)
    result = {"count": count, "tried": len(numbers), "different": different}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
