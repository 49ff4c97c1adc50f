"""Tensors that are not plain strided floats: sparse, complex, quantized, nested, mkldnn, meta."""

from __future__ import annotations

import functools

import torch
import torch._lazy.ts_backend
from compat_harness import unnoticed
from torch import nn


@unnoticed(formula="gradients of sparse leaves are copied, so the sum of two shares nothing and is coalesced")
def test_sparse_coo():
    weight = torch.randn(4, 3, requires_grad=True)
    sparse = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (2, 4), requires_grad=True)
    out = torch.sparse.mm(sparse, weight)
    out.sum().backward()
    return weight, sparse.grad, sparse.detach().coalesce(), (sparse.detach() * 2).to_dense()


@unnoticed
def test_sparse_compressed():
    dense = torch.eye(6)
    dense[0, 3] = 2
    csr = dense.to_sparse_csr()
    blocks = dense.to_sparse_bsr((2, 2))
    return csr, csr @ torch.randn(6, 2), dense.to_sparse_csc(), blocks, blocks.to_dense()


@unnoticed
def test_sparse_embedding_gradients():
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([1, 2, 2])).sum().backward()
        optimizer.step()
    return table


@unnoticed
def test_complex():
    x = torch.randn(8, dtype=torch.complex64, requires_grad=True)
    y = torch.fft.fft(x).conj() * x
    y.abs().sum().backward()
    return x, y, torch.view_as_real(y.detach()), y.detach().imag


@unnoticed
def test_quantized():
    x = torch.randn(4, 4)
    q = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    rows = torch.quantize_per_channel(
        x, torch.ones(4) * 0.1, torch.zeros(4, dtype=torch.long), 0, torch.quint8
    )
    fake = torch.fake_quantize_per_tensor_affine(x.requires_grad_(), 0.1, 0, -128, 127)
    fake.sum().backward()
    return q, q.dequantize(), rows, rows.int_repr(), x, fake


@unnoticed
def test_nested_strided():
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    out = nn.functional.linear(nested, torch.randn(4, 4)).relu()
    return out, torch.nested.to_padded_tensor(out, 0.0)


@unnoticed
def test_nested_jagged():
    parts = [torch.randn(2, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)]
    nested = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    out = nn.functional.linear(nested, torch.randn(4, 4)).sin()
    out.values().sum().backward()
    return parts, out.values().detach(), out.offsets()


@unnoticed
def test_mkldnn():
    x = torch.randn(2, 3, 8, 8).to_mkldnn()
    y = torch.randn(2, 3, 8, 8).to_mkldnn()
    from torch.utils.mkldnn import to_mkldnn

    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    with torch.no_grad():
        out = to_mkldnn(net)(x).to_dense()
    return out, (x + y).to_dense()


@unnoticed
def test_meta_tensors():
    with torch.device("meta"):
        net = nn.Linear(1000, 1000)
        out = net(torch.empty(4, 1000))
    return out, net


@unnoticed
def test_masked_tensors():
    from torch.masked import masked_tensor

    masked = masked_tensor(torch.arange(6.0), torch.tensor([True, False, True, True, False, True]))
    total = masked.sum()
    return total.get_data(), total.get_mask()


@unnoticed
def test_channels_last_and_odd_strides():
    net = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    net(x).sum().backward()
    return net, x, torch.randn(6).as_strided((2, 2), (1, 2), 1)


_start_lazy_backend = functools.cache(torch._lazy.ts_backend.init)  # torch refuses a second start


@unnoticed
def test_lazy():
    _start_lazy_backend()
    x = torch.ones(4, 4, device="lazy")
    y = x.relu() + 1
    y.mul_(2)
    return y.cpu(), x.cpu()
