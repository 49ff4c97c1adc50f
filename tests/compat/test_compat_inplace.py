"""In-place ops, views, storage surgery and inference mode."""

from __future__ import annotations

import numpy as np
import torch
from compat_harness import unnoticed
from torch import nn


@unnoticed
def test_in_place_ops_and_views():
    x = torch.randn(6, 4, requires_grad=True)
    y = x * 2
    y[:, 1].mul_(3)
    y.t()[0].zero_()
    z = y.view(-1)
    z.add_(1)
    z.sum().backward()
    return x, y, z


@unnoticed(raises=True)
def test_changed_saved_output_raises():
    y = torch.randn(8, requires_grad=True).exp()
    y.add_(1)
    y.sum().backward()


@unnoticed(raises=True)
def test_changed_saved_input_raises():
    w = torch.randn(4, 4, requires_grad=True)
    x = torch.randn(4, 4)
    out = w @ x
    x.zero_()
    out.sum().backward()


@unnoticed(raises=True)
def test_changed_view_of_a_saved_tensor_raises():
    h = torch.randn(4, 4, requires_grad=True) * 1
    out = h.sigmoid()
    out[0].fill_(0)
    out.sum().backward()


@unnoticed(raises=True)
def test_changed_weight_of_a_linear_layer_raises():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    out = net(torch.randn(2, 4)).sum()
    with torch.no_grad():
        net[1].weight.add_(1)
    out.backward()


@unnoticed(raises=True)
def test_changed_saved_tensor_raises_in_anomaly_mode():
    with torch.autograd.set_detect_anomaly(True):
        y = torch.randn(8, requires_grad=True).tanh()
        y.mul_(2)
        y.sum().backward()


@unnoticed(raises=True)
def test_in_place_on_a_leaf_raises():
    torch.randn(3, requires_grad=True).add_(1)


@unnoticed(raises=True)
def test_in_place_on_a_view_of_a_leaf_raises():
    torch.randn(3, 3, requires_grad=True)[0].add_(1)


@unnoticed(raises=True)
def test_in_place_on_an_unbound_view_raises():
    a, _ = (torch.randn(2, 3, requires_grad=True) * 1).unbind()
    a.add_(1)


@unnoticed
def test_preserving_the_version_counter():
    y = torch.randn(8, requires_grad=True).exp()
    with torch.autograd._unsafe_preserve_version_counter(y):
        y.add_(1)
    y.sum().backward()
    return y.detach()


@unnoticed
def test_inference_mode():
    net = nn.Linear(4, 4)
    with torch.inference_mode():
        out = net(torch.randn(2, 4))
        out.add_(1)
    return out, out.is_inference(), net


@unnoticed(raises=True)
def test_inference_tensor_in_autograd_raises():
    with torch.inference_mode():
        x = torch.randn(4)
    w = torch.randn(4, requires_grad=True)
    (w * x).sum().backward()


@unnoticed
def test_no_grad_and_set_grad_enabled():
    w = torch.randn(4, requires_grad=True)
    with torch.no_grad():
        a = w * 2
    with torch.set_grad_enabled(False):
        b = w * 3
    return a, b, (w * 4).requires_grad


@unnoticed
def test_resize():
    x = torch.zeros(4)
    x.resize_(16).fill_(1)
    y = torch.empty(0)
    torch.add(x, 1, out=y)
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(64)
    x.fill_(2)
    return x, y


@unnoticed
def test_set_storage():
    x, y = torch.randn(4), torch.randn(8)
    x.set_(y)
    z = torch.empty(0).set_(y.untyped_storage(), 2, (3,))
    return x, y, z


@unnoticed
def test_assigning_data():
    net = nn.Linear(4, 4)
    net.weight.data = torch.ones(4, 4)
    net(torch.randn(2, 4)).sum().backward()
    net.weight.grad.data.mul_(2)
    net.weight.data.zero_()
    return net


@unnoticed
def test_swapping_and_moving_parameters():
    net = nn.Linear(4, 4)
    net.to(torch.float64).half().float()
    torch.utils.swap_tensors(net.weight, nn.Parameter(torch.ones(4, 4)))
    net(torch.randn(2, 4)).sum().backward()
    return net


@unnoticed
def test_sharing_memory_with_numpy():
    x = torch.ones(16)
    array = x.numpy()
    array[0] = 7
    borrowed = torch.from_numpy(np.arange(8, dtype=np.float32))
    borrowed.mul_(2)
    return x, array, borrowed, np.asarray(borrowed), torch.as_tensor([1.0, 2.0])


@unnoticed
def test_sharing_memory_by_dlpack():
    x = torch.arange(8.0)
    y = torch.from_dlpack(x)
    y.add_(1)
    return x, y, np.from_dlpack(x)


@unnoticed
def test_frombuffer_and_memory_views():
    raw = bytearray(16)
    x = torch.frombuffer(raw, dtype=torch.float32)
    x.fill_(1)
    return x, bytes(raw), x.untyped_storage().tolist()[:4]


@unnoticed
def test_out_variants():
    out, values, indices = torch.empty(4, 4), torch.empty(4), torch.empty(4, dtype=torch.long)
    torch.mm(torch.randn(4, 4), torch.randn(4, 4), out=out)
    torch.max(out, dim=0, out=(values, indices))
    return out, values, indices


@unnoticed
def test_lazy_clone_and_storage_sharing():
    x = torch.randn(16)
    lazy = torch._lazy_clone(x)
    lazy.add_(1)
    return x, lazy
