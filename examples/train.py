"""Three steps of a small network: the README shows the summary of this run."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(6)])
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(512, 128)

for _ in range(3):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
