"""Data: the ops that ATen computes in another way while any TorchDispatchMode is on, torch 2.13.

While a mode is on, ATen's `isTensorSubclassLike` is true for every tensor. Formulas that check it then avoid in-place
ops and data-dependent shapes. The set was found with PyTorch's op database: every sample of its 702 entries ran
forward and backward, once plainly and once under an empty mode. The ops of every autograd node were compared in the
profiler's event tree (`reports/opinfo.py --formulas` repeats it).
"""

from __future__ import annotations

from typing import Final

BACKWARD: Final = {
    "aten._ctc_loss": "pads with the lengths as tensors",
    "aten._linalg_eigh": "scatters the diagonal into a copy",
    "aten.atan2": "masks a copy",
    "aten.binary_cross_entropy": "multiplies out of place",
    "aten.binary_cross_entropy_with_logits": "multiplies and subtracts out of place",
    "aten.clamp": "combines its masks out of place",
    "aten.cummax": "adds into a copy of the zeros",
    "aten.cummin": "adds into a copy of the zeros",
    "aten.cumprod": "takes the branch that allows for zeros",
    "aten.gather": "adds into a copy of the zeros",
    "aten.index": "puts into a copy of the zeros",
    "aten.index_select": "adds into a copy of the zeros",
    "aten.kthvalue": "scatters into a copy of the zeros",
    "aten.linalg_eig": "skips the check of the gauge",
    "aten.linalg_householder_product": "stacks its columns by cat",
    "aten.linalg_matrix_exp": "builds its blocks by cat",
    "aten.masked_fill": "fills by where",
    "aten.masked_select": "scatters into a copy of the zeros",
    "aten.max": "masks or scatters into a copy",
    "aten.median": "masks or scatters into a copy",
    "aten.min": "masks or scatters into a copy",
    "aten.mode": "scatters into a copy of the zeros",
    "aten.nanmedian": "masks or scatters into a copy",
    "aten.ormqr": "stacks its columns by cat",
    "aten.prod": "takes the branch that allows for zeros",
    "aten.sort": "scatters into a copy of the zeros",
    "aten.take": "puts into a copy of the zeros",
    "aten.topk": "scatters into a copy of the zeros",
    "aten.trace": "fills a copy of the zeros",
}
"""Ops whose backward differs: the op without its overload, and what its backward does instead."""

FORWARD: Final = {
    "aten._ctc_loss": "copies the lengths into tensors",
    "aten._safe_softmax": "adds the attention mask out of place",
}
"""Ops that are recorded where a composite forward differs."""
