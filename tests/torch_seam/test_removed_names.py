"""On a torch that lacks any one private name, memwatch works or names the missing ability in one sentence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from removal import ASKED_LAST

_ROOT = Path(__file__).resolve().parents[2]
_TAKEN = re.compile(r'"(torch(?:\.\w+)*\.\w+)"')
AS_WELL = (
    "torch._C._profiler._get_approximate_time",
    "torch._C._profiler._ApproximateClockToUnixTimeConverter",
    "torch._C._jit_get_all_schemas",
)
"""Names without which memwatch does as well, so no note says that they are missing."""
NAMES = sorted(
    {name for path in _ROOT.glob("memwatch/_torch/*.py") for name in _TAKEN.findall(path.read_text())},
    key=lambda name: (name.startswith(ASKED_LAST), name),
)


@pytest.fixture(scope="module")
def use_without():
    """Yield a function that uses memwatch on a torch without one name, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "plugins")])}
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("removal.py"))],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
    ) as server:  # fmt: skip

        def ask(name: str) -> dict[str, dict]:
            print(name, file=server.stdin, flush=True)
            return json.loads(server.stdout.readline())

        yield ask
        server.stdin.close()


@pytest.fixture(scope="module")
def untouched(use_without):
    """Return the result with every name in its place."""
    return use_without("nothing")


def test_nothing_is_missing_from_this_torch(untouched):
    """The torch of the tests has every name, so all abilities work and notes are empty."""
    assert untouched["missing"] == []
    assert not [step for step in untouched.values() if isinstance(step, dict) and "traceback" in step]


@pytest.mark.parametrize("name", NAMES)
def test_without(name, use_without):
    """Import, profile and leak check work without the name, or refuse in a sentence that holds it."""
    result = use_without(name)
    asked, missing = result.pop("asked"), result.pop("missing")
    assert [step["traceback"] for step in result.values() if "traceback" in step] == []
    assert asked
    assert all(name in sentence for sentence in missing)
    assert bool(missing) == (asked and name not in AS_WELL)
    for step in result.values():
        if "refused" in step:
            assert name in step["refused"]
        if "notes" in step:
            assert set(missing) <= set(step["notes"])
        if "ops" in step:
            assert step["peak_bytes"] > 0
            assert step["ops"] > 0
            assert not step["leaks_outputs"]
