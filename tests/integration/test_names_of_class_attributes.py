"""A module that a class of the program holds is called by the path to it, as the program writes it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

import memwatch


class Service:
    encoder = nn.Linear(31, 57)
    heads: ClassVar = {"topic": nn.Linear(57, 11)}

    @classmethod
    def answer(cls, x):
        return cls.heads["topic"](cls.encoder(x).relu())


class Shared(nn.Module):
    backbone = nn.Linear(31, 41)

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(41, 3)

    def forward(self, x):
        return self.out(type(self).backbone(x))


def test_a_module_in_a_class_attribute_has_the_path_of_the_attribute():
    """It was called by its class: `Linear`."""
    with memwatch.profile() as prof:
        Service.answer(torch.ones(5, 31)).sum().backward()
    names = set(prof.modules["module"]) if "module" in prof.modules else set(prof.modules.index)
    assert {"Service.encoder", "Service.heads['topic']"} <= names


def test_a_module_that_a_class_of_modules_shares_has_the_path_of_the_attribute():
    """The module is not a child of any instance."""
    net = Shared()
    with memwatch.profile() as prof:
        net(torch.ones(5, 31)).sum().backward()
    names = set(prof.modules["module"]) if "module" in prof.modules else set(prof.modules.index)
    assert {"net", "net.out", "Shared.backbone"} <= names
