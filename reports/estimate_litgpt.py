"""A training program of one of litgpt's models with two of its blocks, in bfloat16, as a published benchmark ran it.

litgpt is found in the folder that LITGPT names (`pip install --no-deps --target FOLDER litgpt`): of the package its
models alone are imported.
"""

import os
import pathlib
import sys
import types

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.nn import functional as F  # noqa: N812  # torch's own convention

FOLDER = os.environ["LITGPT"]
sys.path.append(FOLDER)
sys.modules["litgpt"] = types.ModuleType("litgpt")
sys.modules["litgpt"].__path__ = [str(pathlib.Path(FOLDER, "litgpt"))]

from litgpt.config import Config  # noqa: E402
from litgpt.model import GPT, Block  # noqa: E402

name, checkpointed = sys.argv[1], sys.argv[2] == "checkpointed"
torch.set_default_dtype(torch.bfloat16)
model = GPT(Config.from_name(name, n_layer=2))
if checkpointed:
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1, betas=(0.9, 0.95), fused=True)
for _ in range(3):
    words = torch.randint(model.config.vocab_size, (1, model.config.block_size))
    logits = model(words)
    loss = F.cross_entropy(logits.flatten(0, 1), words.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
