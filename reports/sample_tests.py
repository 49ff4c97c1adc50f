"""A plugin of pytest for `torches.py`: run every n-th test, and write a line for each that is done.

The lines are written as the tests end, so a process that dies leaves what it did.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sample")
    group.addoption("--every", type=int, default=1, help="run every n-th test")
    group.addoption("--outcomes", type=Path, required=True, help="file for a line `outcome node-id` per test")


@pytest.hookimpl(trylast=True)  # the suite has put them in its order
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = items[:: config.getoption("--every")]
    config.getoption("--outcomes").write_text(f"collected {len(items)}\n")
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # noqa: ANN201
    report = yield
    # of setup and teardown only what is not as it should be
    if report.when == "call" or report.outcome != "passed":
        with item.config.getoption("--outcomes").open("a") as lines:
            lines.write(f"{report.outcome} {report.nodeid}\n")
    return report
