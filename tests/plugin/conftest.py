"""Inner pytest sessions run in this process."""

from __future__ import annotations

import json

import pytest
import torch

import memwatch

INI = """
[pytest]
asyncio_default_fixture_loop_scope = function
addopts = -p no:timeout -p no:anyio -p no:benchmark -p no:unraisableexception
"""


@pytest.fixture(autouse=True, scope="session")
def _imports():
    """Import the modules that inner sessions import, because pytester makes them forget these.

    Not before the first of these tests: the heaps that earlier tests search stay small.
    """
    import networkx  # noqa: F401  # for the first leak that one pass finds: half a second in each inner session
    import torch.nn.utils.parametrizations  # noqa: F401

    from memwatch import report  # noqa: F401

    memwatch.find_leaks(lambda: None)  # its own lazy imports
    with memwatch.profile():
        pass


@pytest.fixture(autouse=True)
def _no_plugin_of_hypothesis(pytester, monkeypatch):
    """Let inner sessions do without it: its summary imports 175 modules, and pytester forgets them each time.

    This took more than half of the time of a small inner session. `-p hypothesispytest` brings the plugin back.
    """
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")


@pytest.fixture(autouse=True)
def _few_threads():
    torch.set_num_threads(1)


@pytest.fixture
def inner_ini(pytester):
    """Write the settings of an inner session."""
    pytester.makeini(INI)


@pytest.fixture
def session(pytester):
    """Run a test file in an inner session: ``session(source, *options, ini=...)``."""

    def run(source, *options, ini=""):
        pytester.makeini(INI + ini)
        pytester.makepyfile(source)
        return pytester.runpytest(*options)

    return run


@pytest.fixture
def results(pytester, session):
    """Run a test file and return its results by test name, from the JSON file."""

    def run(source, *options, ini=""):
        session(source, "--memwatch-json=out.json", *options, ini=ini)
        data = json.loads((pytester.path / "out.json").read_text())
        return {test["nodeid"].partition("::")[2]: test for test in data["tests"]}

    return run
