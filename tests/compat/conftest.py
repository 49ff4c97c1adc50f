"""The compatibility matrix's harness asserts, so pytest shall explain its asserts too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.register_assert_rewrite("compat_harness")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run each file's tests of one recorder together: a change of recorder registers every kernel again.

    Pytest passes the items of all folders; each file of this one keeps its place.
    """
    here = Path(__file__).parent
    in_order = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}

    def key(item: pytest.Item) -> tuple[int, str]:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        recorder = str(parameters.get("intercept", "")) if item.path.parent == here else ""
        return in_order[item.path], recorder.partition("-")[2]

    items.sort(key=key)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
