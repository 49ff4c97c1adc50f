"""Three steps of a small network: the README shows the summary of this run."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6)])
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(512, 256)

for _ in range(3):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
