"""Findings about updates that a program writes itself, and about memory in objects of one container."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

import memwatch


@dataclass
class Batch:
    inputs: torch.Tensor
    outputs: torch.Tensor


def test_a_step_of_the_programs_own_is_no_forward_that_gradients_outlive():
    """While a loop goes over gradients, the passed ones are not reported as kept in forward."""
    net = nn.Sequential(nn.Linear(211, 503), nn.ReLU(), nn.Linear(503, 307))
    moved = {}
    with memwatch.profile() as prof:
        for _ in range(3):
            net(torch.randn(11, 211)).square().mean().backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    moved[parameter] = parameter.grad * 0.1
                    parameter.add_(moved[parameter])
            net.zero_grad()
    assert [finding for finding in prof.findings if finding.kind == "gradient"] == []


def test_objects_of_one_list_are_one_finding():
    """Memory in attributes of many items is reported once, for any item."""
    net, kept = nn.Linear(211, 307), []
    with torch.no_grad(), memwatch.profile() as prof:
        for _ in range(5):
            inputs = torch.randn(101, 211)
            kept.append(Batch(inputs, net(inputs)))
            del inputs
        torch.randn(503, 211) * 2
    holders = [finding.holder for finding in prof.findings if "kept[" in finding.holder]
    assert len(holders) == len(set(holders)) == 2
    assert all("kept[...]." in holder for holder in holders)


def test_what_a_function_of_torch_copies_is_no_choice_of_the_program():
    """A recurrent layer saves copies of its states in every step. A program cannot convert them earlier."""
    layer = nn.GRU(61, 101, batch_first=True)
    with memwatch.profile() as prof:
        for _ in range(2):
            result, _ = layer(torch.randn(17, 31, 61))
            result.square().sum().backward()
            layer.zero_grad()
    assert [finding for finding in prof.findings if finding.kind == "twice"] == []
