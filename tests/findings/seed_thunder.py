"""The two functions of lightning-thunder #1337 as posted there: one computation in two orders."""

from __future__ import annotations

import torch


def memory_peak_efficient_func(t0s, a):
    for t0 in t0s:
        t1 = torch.nn.functional.relu(t0)
        del t0
        t2 = torch.matmul(t1, t1)
        del t1
        t3 = torch.nn.functional.relu(t2)
        del t2
        a = torch.matmul(t3, a)
        del t3
    return a


def memory_peak_inefficient_func(t0s, a):
    # Can be fused into a single region
    t1s = []
    for t0 in t0s:
        t1 = torch.nn.functional.relu(t0)
        del t0
        t1s.append(t1)
    del t0s

    t2s = []
    while t1s:
        t1 = t1s.pop()
        t2 = torch.matmul(t1, t1)
        del t1
        t2s.append(t2)
    del t1s

    # Can be fused into a single region
    t3s = []
    while t2s:
        t2 = t2s.pop()
        t3 = torch.nn.functional.relu(t2)
        del t2
        t3s.append(t3)
    del t2s

    while t3s:
        t3 = t3s.pop()
        a = torch.matmul(t3, a)
        del t3
    del t3s

    return a
