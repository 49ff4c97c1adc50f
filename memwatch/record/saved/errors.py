"""autograd's own errors about saved tensors, word for word: a pack of ours raises them where autograd would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import torch

from memwatch._torch.autograd import CANNOT, node_name_in_errors
from memwatch._torch.tensors import nested_sizes_of, version_of

if TYPE_CHECKING:
    from torch import Tensor

MODIFYING: Final = (
    f"A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook {CANNOT} be "
    "modified by in-place operations as this can lead to unexpected side-effects. Please open an issue if you "
    "need to perform in-place operations on the input to a pack hook."
)
DETACHED: Final = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)
_MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace operation: "
_HINT = (
    " Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
    "torch.autograd.set_detect_anomaly(True, check_nan=False)."
)
_ANOMALY_HINT = (
    " Hint: the backtrace further above shows the operation that failed to compute its gradient. The variable "
    "in question was changed in there or anywhere later. Good luck!"
)


class PackedTensor(Protocol):
    """A pack that keeps a tensor of autograd's, in whichever backend."""

    @property
    def packed(self) -> Tensor:
        """The tensor, or an alias of it."""

    @property
    def version(self) -> int:
        """Its version when it was packed."""

    @property
    def output_nr(self) -> int:
        """Which output of its node it was."""

    @property
    def node_name(self) -> str | None:
        """The name of the node that made it; None for a leaf."""

    def original(self) -> Tensor | None:
        """Return the saved tensor itself, if it lives."""


def inplace_error(pack: PackedTensor) -> str:
    """Return the text of the error for a tensor that was written after it was saved (saved_variable.cpp of torch)."""
    packed = pack.packed
    original = pack.original()
    node, output_nr = pack.node_name, pack.output_nr
    # The getter on purpose: torch calls it here too. It rebuilds the history of a view of what was changed, and so the
    # error names another node than the one that was there when the tensor was saved.
    if original is not None and original.grad_fn is not None:
        node = original.grad_fn.name()
    sizes = nested_sizes_of(packed) if packed.is_nested else list(packed.shape)
    of_node = ""
    if node is not None:
        of_node = f", which is output {output_nr} of {node_name_in_errors(node)},"
    hint = _ANOMALY_HINT if torch.is_anomaly_enabled() else _HINT
    return (
        f"{_MODIFIED}[{packed.type()} {sizes}]{of_node} is at version {version_of(packed)}; "
        f"expected version {pack.version} instead.{hint}"
    )
