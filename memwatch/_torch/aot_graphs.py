"""What AOTAutograd writes beside the nodes of its graphs; importing this file loads no compiler.

| torch | here |
| --- | --- |
| torch._functorch._aot_autograd.descriptors.InputMutationAOTOutput | InputMutation |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch._torch.lookup import NoSuchClass, Part

if TYPE_CHECKING:
    from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

    InputMutation = InputMutationAOTOutput
else:
    InputMutation = Part("a plan of a compiled graph may miss that an input is written").take(
        "torch._functorch._aot_autograd.descriptors.InputMutationAOTOutput", NoSuchClass
    )
    """The class of outputs of a joint graph that AOTAutograd writes back into an input."""
