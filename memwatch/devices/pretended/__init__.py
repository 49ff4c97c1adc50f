"""A CUDA device that a program finds though there is none: for fake tensors, which need no memory there."""

from __future__ import annotations

from memwatch.devices.pretended.pretence import pretended_cuda

__all__ = ["pretended_cuda"]
