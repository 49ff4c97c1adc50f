"""Odd steps of modules: checkpoints, evaluation, hooks, layouts."""

from __future__ import annotations

import torch
from replay_odd import program
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


@program
def eval_loop():
    m = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 16)).eval()
    xs = [torch.randn(8, 16) for _ in range(4)]

    def step():
        with torch.no_grad():
            return [m(x).argmax(1) for x in xs]

    return step


@program
def inference_mode():
    m = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)).eval()
    x = torch.randn(8, 16)

    def step():
        with torch.inference_mode():
            return m(x) + 1

    return step


@program
def none_outputs():
    m = nn.GRU(8, 8)
    x = torch.randn(5, 3, 8)
    ln = nn.LayerNorm(8, elementwise_affine=False)

    def step():
        y, h = m(x)
        loss = ln(y).sum() + h.sum()
        gs = torch.autograd.grad(loss, list(m.parameters()))
        return gs

    return step


@program
def rnn_packed():
    m = nn.LSTM(4, 8, bidirectional=True)
    seq = [torch.randn(n, 4) for n in (5, 3, 2)]

    def step():
        p = nn.utils.rnn.pack_sequence(seq)
        o, _ = m(p)
        y, _ = nn.utils.rnn.pad_packed_sequence(o)
        return y.sum()

    return step


@program
def attention():
    m = nn.MultiheadAttention(16, 2, batch_first=True, dropout=0.1)
    x = torch.randn(2, 7, 16, requires_grad=True)

    def step():
        y, w = m(x, x, x)
        (y.sum() + w.sum()).backward()
        g = x.grad
        x.grad = None
        m.zero_grad()
        return g

    return step


@program
def hooks():
    m = nn.Linear(8, 8)
    x = torch.randn(4, 8)
    seen = []
    m.weight.register_hook(lambda g: g * 2)
    m.register_full_backward_hook(lambda mod, gi, go: seen.append(go[0].sum()))

    def step():
        seen.clear()
        m(x).sum().backward()
        g = m.weight.grad
        m.zero_grad()
        return g

    return step


@program
def module_swap():
    m = nn.BatchNorm1d(8)
    x = torch.randn(4, 8)

    def step():
        y = m(x)
        m.eval()
        z = m(x)
        m.train()
        return y + z

    return step


@program
def weight_norm_sn():
    m = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    x = torch.randn(4, 8)

    def step():
        m(x).sum().backward()
        m.zero_grad()

    return step


@program
def channels_last():
    m = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)

    def step():
        m(x).relu_().sum().backward()
        m.zero_grad()

    return step


@program
def ckpt_reentrant():
    m = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.ReLU(), nn.Linear(64, 8))
    x = torch.randn(4, 8, requires_grad=True)

    def step():
        checkpoint(m, x, use_reentrant=True).sum().backward()
        m.zero_grad()
        x.grad = None

    return step


@program
def ckpt_sequential():
    m = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(6)])
    x = torch.randn(4, 8, requires_grad=True)

    def step():
        checkpoint_sequential(m, 3, x, use_reentrant=False).sum().backward()
        m.zero_grad()
        x.grad = None

    return step


@program
def transformer_layer():
    m = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    x = torch.randn(2, 5, 16)

    def step():
        m(x).sum().backward()
        m.zero_grad()

    return step


@program
def transformer_eval_fast():
    m = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)

    def step():
        with torch.no_grad():
            return m(x)

    return step


@program
def norms():
    x = torch.randn(4, 8, 6, 6, requires_grad=True)
    gn = nn.GroupNorm(2, 8)
    inn = nn.InstanceNorm2d(8, track_running_stats=True)
    bn = nn.BatchNorm2d(8, momentum=None)
    rms = nn.RMSNorm(6)

    def step():
        rms(bn(inn(gn(x)))).sum().backward()
        x.grad = None
        [m.zero_grad() for m in (gn, inn, bn, rms)]

    return step


@program
def data_parallel_like():
    ms = [nn.Linear(8, 8) for _ in range(2)]
    x = torch.randn(4, 8)

    def step():
        for m in ms:
            m(x).sum().backward()
        gs = torch.stack([m.weight.grad for m in ms]).mean(0)
        for m in ms:
            m.weight.grad.copy_(gs)
            m.bias.grad = None

    return step


@program
def sampling_loop():
    m = nn.Linear(16, 16)

    def step():
        ids = [0]
        h = torch.zeros(1, 16)
        with torch.no_grad():
            for _ in range(5):
                h = m(h).tanh()
                ids.append(torch.multinomial(h.softmax(-1), 1).item())
        return ids

    return step


@program
def autocast_fp16_ckpt():
    m = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    x = torch.randn(4, 8)

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            loss = checkpoint(m, x, use_reentrant=False).float().sum()
        loss.backward()
        m.zero_grad()

    return step
