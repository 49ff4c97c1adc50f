"""A hook that closes over its own tensor: gc never frees it, so no other tool on torch 2.13 reports it."""

from __future__ import annotations

import torch

from memwatch.leaks import TensorLeakError, check_leaks

weight = torch.randn(512, 512, requires_grad=True)


def clipped_activation() -> float:
    y = weight.exp()
    y.register_hook(lambda grad: grad.clamp(max=y.max().item()))
    return float(y.sum())


try:
    with check_leaks():
        clipped_activation()
except TensorLeakError as error:
    print(error)
