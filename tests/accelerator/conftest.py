"""Run the tests of each file here in one process of its own, which has the pretend accelerator.

An accelerator is there for the rest of a process, and other tests must not find one. So a fork of the process that
`fork_server.py` keeps runs all tests of a file, one after the other, and pytest reports the outcome of each.
"""

from __future__ import annotations

import json
import pathlib

import pytest
import torch
from forked import run_forked

HERE = pathlib.Path(__file__).parent


@pytest.fixture(autouse=True, scope="module")
def outcomes(request, _fork_server, tmp_path_factory):
    """Return the error of each test of this file by its name, empty where it passed."""
    assert not hasattr(torch, "pretend"), "the process of the other tests has got the accelerator"
    items = [item for item in request.session.items if item.path == request.path]
    calls = [
        (item.name, item.originalname, item.callspec.params if hasattr(item, "callspec") else {})
        for item in items
    ]
    code = f"import sys; sys.path[:0] = {[str(HERE), str(HERE.parent)]}; import file_of_tests; file_of_tests.run()"
    arguments = (request.path.stem, json.dumps(calls))
    folder, outputs = tmp_path_factory.mktemp("folder"), tmp_path_factory.mktemp("outputs")
    ended = run_forked(_fork_server, code, *arguments, folder=folder, outputs=outputs)
    lines = [
        json.loads(line[len("outcome ") :])
        for line in ended.stdout.splitlines()
        if line.startswith("outcome ")
    ]
    never = f"the process ended with {ended.returncode} before this test did\n{ended.stdout}{ended.stderr}"
    return {name: never for name, _, _ in calls} | dict(lines)


def pytest_pyfunc_call(pyfuncitem):
    """Report the outcome of the test in the process of its file."""
    error = pyfuncitem.funcargs["outcomes"][pyfuncitem.name]
    if error:
        pytest.fail(error, pytrace=False)
    return True
