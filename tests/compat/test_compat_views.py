"""Views of a tensor that is changed in place: a holder sample after every op must not rebuild their history.

torch rebuilds the history of such a view when somebody reads its node. Below autograd, where samples are taken, the
rebuilt history would be empty, and the gradients wrong.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compat_harness import INTERCEPTS, check_sampled
from torch import Tensor
from torch.autograd.grad_mode import _force_original_view_tracking

VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "view_as_real": torch.view_as_real,
    "real": lambda base: base.real,
    "imag": lambda base: base.imag,
    "conj": lambda base: base.conj(),
    "negative": lambda base: base.conj().imag,
    "view": lambda base: base.view(2, -1),
    "view_as_complex": lambda base: torch.view_as_complex(torch.view_as_real(base)),
    "transpose": lambda base: base.t(),
    "permute": lambda base: base.permute(1, 0),
    "select": lambda base: base[1],
    "slice": lambda base: base[1:],
    "diagonal": lambda base: base.diagonal(),
    "expand": lambda base: base.unsqueeze(0).expand(2, 4, 4),
    "unfold": lambda base: base.unfold(0, 2, 2),
    "as_strided": lambda base: base.as_strided((2, 4), (4, 1)),
    "split": lambda base: base.split(2)[0],
    "unbind": lambda base: base.unbind()[0],
}


def add_to_the_base(base: Tensor, view: Tensor, weight: Tensor) -> None:
    base += weight


def write_a_part_of_the_base(base: Tensor, view: Tensor, weight: Tensor) -> None:
    base[:2] = weight[:2]


def scale_the_base_twice(base: Tensor, view: Tensor, weight: Tensor) -> None:
    base.add_(weight).mul_(weight)


def write_through_the_view(base: Tensor, view: Tensor, weight: Tensor) -> None:
    base += weight
    view.mul_(2)


def write_without_gradients(base: Tensor, view: Tensor, weight: Tensor) -> None:
    base += weight
    with torch.no_grad():
        base.mul_(3)


_ADDED_ANEW = "under any mode autograd adds two gradients to a new tensor, whose version is 0"

CHANGES = [
    add_to_the_base, write_a_part_of_the_base, scale_the_base_twice, write_through_the_view, write_without_gradients,
]  # fmt: skip


def gradient_through(view_of: Callable[[Tensor], Any], change: Any, *, tracking: bool) -> Callable[[], Any]:
    """Return a program that changes a tensor under a view of it, and takes the gradient through both."""

    def program() -> Any:
        weight = torch.randn(4, 4, dtype=torch.cfloat, requires_grad=True)
        with _force_original_view_tracking(True) if tracking else contextlib.nullcontext():
            base = torch.zeros(4, 4, dtype=torch.cfloat)
            view = view_of(base)
            change(base, view, weight)
            # ops after the change: a sample there sees a view whose history is out of date
            waves = base.exp()
            loss = waves.abs().sum() + waves.angle().sum()
            loss = loss + view.abs().pow(2).sum()
            return loss, torch.autograd.grad(loss, weight), view.grad_fn.name()

    return program


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_keeps_its_history(name, intercept):
    """One change for each view and each way; `python reports/sampled_programs.py` runs every change in every way."""
    number = list(VIEWS).index(name) + INTERCEPTS.index(intercept) + int(os.environ["MEMWATCH_NATIVE"])
    check_view(name, intercept, CHANGES[number % len(CHANGES)])


def check_view(name: str, intercept: str, change: Any) -> None:
    """Assert that programs with a view run as plainly, with a holder sample after every op.

    There are two programs, for torch notes views in two ways. Gradients and errors are compared.
    """
    for tracking in (False, True):
        program = gradient_through(VIEWS[name], change, tracking=tracking)
        # the deep search reads tensors as the near one does, and takes ten times as long
        samples = check_sampled(program, intercept, formula=_ADDED_ANEW, deep_every=100)
        assert samples > 0
