"""Windows of the allocator's events, and the reasons for their ends."""

from __future__ import annotations

_LEFT_OPEN = """
import torch
from memwatch.replay.measure import AllocatorWindow
window = AllocatorWindow("cpu")
torch.ones(10)
print("the end", flush=True)
"""


def test_a_process_may_end_within_a_window(fresh_python):
    """A graph whose backward never comes keeps a window open up to the end, where torch would crash."""
    done = fresh_python(_LEFT_OPEN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")
