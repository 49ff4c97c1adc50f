"""An op's exception reaches the program with its class and its words."""

from __future__ import annotations

import torch
from compat_harness import unnoticed

FAILING = {
    "index out of range": lambda: torch.ones(2).index_select(0, torch.tensor([5])),
    "no such dimension": lambda: torch.ones(2).sum(3),
    "shapes that do not fit": lambda: torch.ones(2, 3) @ torch.ones(2, 3),
    "not for this dtype": lambda: torch.ones(2, dtype=torch.bool) - torch.ones(2, dtype=torch.bool),
    "not positive definite": lambda: torch.linalg.cholesky(-torch.eye(3)),
    "singular": lambda: torch.linalg.inv(torch.zeros(2, 2)),
    "two devices": lambda: torch.ones(2) + torch.ones(2, device="meta"),
    "a leaf in place": lambda: torch.ones(2, requires_grad=True).add_(1),
    "not a number's": lambda: torch.ones(2).div_(torch.ones(3)),
    "too many values": lambda: torch.empty(1 << 60),
    "wrong type": lambda: torch.ones(2).add("three"),
}


@unnoticed
def test_errors_are_of_the_same_class_and_words():
    return [_error_of(call) for call in FAILING.values()]


def _error_of(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("it was to fail")
