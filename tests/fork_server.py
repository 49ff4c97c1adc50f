"""A process that has imported torch and memwatch, and runs every requested program in a fork of itself.

A fresh process needs seconds to import torch. A fork has the modules already. Apart from this it is fresh. It never
had an open block, no kernel is registered, and torch has loaded nothing on first use.

With `--for-leaks` the process has only what `memwatch leaks` imports, and gc lists its objects in every fork. The
reports import pandas, which puts 50,000 more objects on the heap. A search for leaks visits them all, and it takes
longer to find objects that gc does not list. Both cost such programs a third of their time.

A fork runs the exit handlers of Python and then ends at once. To take down the modules of torch would copy their
memory, 0.3 s each time. Programs that test the very end of a process choose a full exit.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import json
import os
import signal
import sys
import types


class ShortEnd:
    """Ends a fork with a code, if there is one, when all exit handlers that were registered after this one have run."""

    exit_code: int | None = None

    def __call__(self) -> None:
        if self.exit_code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.exit_code)


END = ShortEnd()
atexit.register(END)  # before the handlers of the following imports

import torch  # noqa: E402
from late_dynamo import put_in_place  # noqa: E402

import memwatch.cli.leaks  # noqa: E402
import memwatch.leaks.program_growth  # noqa: E402

TIME_LIMIT_S = 150
"""Half of the limit of a test. Two programs with two workers each took 44 s while two cores had a load of 8."""
FOR_LEAKS = "--for-leaks" in sys.argv

if not FOR_LEAKS:
    import memwatch.report.export
    import memwatch.report.terminal


def next_program() -> dict:
    """Serve requests, one line of JSON each. Return one in every fork, and leave after the last."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return json.loads(line)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # processes that the program left running
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    sys.exit(0)


def become(program: dict) -> dict:
    """Make this process the same as under `python -c`; return the namespace of its main module."""
    os.setsid()
    signal.alarm(TIME_LIMIT_S)  # a program that hangs fails its test
    os.chdir(program["folder"])
    for number, name in enumerate(("/dev/null", program["stdout"], program["stderr"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(program["environment"])
    sys.argv = ["-c", *program["arguments"]]
    sys.path[0] = ""
    if program["unfrozen"]:
        gc.unfreeze()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    return main.__dict__


def run(program: dict, end: ShortEnd) -> None:
    """Run a program as `python -c` does. If an error or a signal ends the program, the fork exits fully."""
    code = compile(program["code"], "<string>", "exec")
    ended_with = 0
    try:
        exec(code, become(program))
    except SystemExit as stop:
        ended_with = stop.code
        raise
    except BaseException:
        ended_with = None
        raise
    finally:
        if isinstance(ended_with, int) and not program["whole_end"]:
            end.exit_code = ended_with


torch.set_num_threads(1)
if not FOR_LEAKS:
    memwatch.profile()  # loads the modules that the first program would load
assert "torch._dynamo" not in sys.modules
if "--late-dynamo" in sys.argv:
    put_in_place()
gc.collect()
if not FOR_LEAKS:
    gc.freeze()  # a fork that visits all these objects, as at its end, would copy their memory
run(next_program(), END)
