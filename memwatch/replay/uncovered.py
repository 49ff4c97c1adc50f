"""Say what a budget cannot cover: code that runs before the first graph of a compiled callable."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from memwatch._torch.autograd import node_of_result
from memwatch._torch.dynamo import is_resumed

if TYPE_CHECKING:
    from collections.abc import Sequence


def warn_of_uncovered(args: Sequence[Any]) -> None:
    """Warn if code of the callable that is not compiled kept something before the first graph ran."""
    if is_resumed() and any(
        isinstance(item, torch.Tensor) and node_of_result(item) is not None for item in args
    ):
        warnings.warn(
            "torch.compile, backend memwatch: code that torch.compile does not compile runs before the first graph; "
            "the budget does not cover what it keeps for the backward", stacklevel=2,
        )  # fmt: skip
