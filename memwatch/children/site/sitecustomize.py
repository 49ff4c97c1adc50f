"""Python imports this module at its start if `memwatch run --children` put this folder on PYTHONPATH.

It records the process once it imports torch, and then runs the `sitecustomize` that Python would have found. It must
never fail: the program must start as it would have started.
"""

import contextlib
import importlib.util
import json
import os
import sys


def _wait_for_torch() -> None:
    told = json.loads(os.environ["MEMWATCH_CHILDREN"])
    if [sys.prefix, *sys.version_info[:2]] != told["python"]:
        return
    if importlib.util.find_spec("memwatch") is None:
        sys.path.append(told["home"])
    from memwatch.children import when_torch_is_imported

    started_as = os.getpid()

    def record() -> None:
        from memwatch.cli.recording import torch_was_imported

        torch_was_imported(started_as)

    when_torch_is_imported(record)


def _hand_on() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    own = sys.modules.pop(__name__)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules[__name__] = own


with contextlib.suppress(Exception):
    _wait_for_torch()
_hand_on()
