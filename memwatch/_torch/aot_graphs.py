"""What AOTAutograd writes beside the nodes of its graphs; importing this file loads no compiler.

| torch | here |
| --- | --- |
| torch._functorch._aot_autograd.descriptors.InputMutationAOTOutput | InputMutation |
"""

from __future__ import annotations

from typing import Any, Final

from memwatch._torch.lookup import NoSuchClass, Part

InputMutation: Final[type[Any]] = Part("a plan of a compiled graph may miss that an input is written").take(
    "torch._functorch._aot_autograd.descriptors.InputMutationAOTOutput", NoSuchClass
)
"""The class of outputs of a joint graph that AOTAutograd writes back into an input."""
