"""Odd training steps: optimizers of all kinds, schedulers, scalers, shared storages."""

from __future__ import annotations

import torch
from replay_odd import program
from torch import nn
from torch.nn import functional


@program
def lbfgs():
    m = nn.Linear(8, 1)
    x = torch.randn(32, 8)
    t = torch.randn(32, 1)
    o = torch.optim.LBFGS(m.parameters(), max_iter=3)

    def step():
        def c():
            o.zero_grad()
            loss = functional.mse_loss(m(x), t)
            loss.backward()
            return loss

        return o.step(c)

    return step


@program
def grad_scaler():
    m = nn.Linear(8, 8)
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    sc = torch.amp.GradScaler("cpu", init_scale=8.0)
    x = torch.randn(4, 8)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = m(x).square().mean()
        sc.scale(loss).backward()
        sc.step(o)
        sc.update()
        o.zero_grad()

    return step


@program
def many_optimizers():
    ms = [nn.Linear(8, 8) for _ in range(8)]
    os = [
        c(m.parameters())
        for c, m in zip(
            [
                torch.optim.Adagrad,
                torch.optim.Adadelta,
                torch.optim.RMSprop,
                torch.optim.NAdam,
                torch.optim.RAdam,
                torch.optim.Adamax,
                torch.optim.ASGD,
                torch.optim.Rprop,
            ],
            ms,
        )
    ]
    x = torch.randn(4, 8)

    def step():
        y = x
        for m in ms:
            y = m(y).tanh()
        y.sum().backward()
        for o in os:
            o.step()
            o.zero_grad()

    return step


@program
def ema():
    m = nn.Linear(8, 8)
    e = torch.optim.swa_utils.AveragedModel(m)
    o = torch.optim.Adam(m.parameters())
    x = torch.randn(4, 8)

    def step():
        m(x).sum().backward()
        o.step()
        o.zero_grad()
        e.update_parameters(m)

    return step


@program
def two_models_two_opts():
    g, d = nn.Linear(4, 8), nn.Linear(8, 1)
    og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
    z = torch.randn(16, 4)
    r = torch.randn(16, 8)

    def step():
        f = g(z)
        ld = (d(r) - 1).square().mean() + d(f.detach()).square().mean()
        od.zero_grad()
        ld.backward()
        od.step()
        lg = (d(f) - 1).square().mean()
        og.zero_grad()
        lg.backward()
        og.step()

    return step


@program
def sgd_maximize_nesterov():
    m = nn.Linear(8, 8)
    o = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, nesterov=True, maximize=True)
    x = torch.randn(4, 8)

    def step():
        m(x).sum().backward()
        o.step()
        o.zero_grad(set_to_none=False)

    return step


@program
def adamw_amsgrad_capturable():
    m = nn.Linear(8, 8)
    o = torch.optim.AdamW(m.parameters(), amsgrad=True)
    sch = torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=50)
    x = torch.randn(4, 8)

    def step():
        m(x).sum().backward()
        nn.utils.clip_grad_value_(m.parameters(), 0.1)
        o.step()
        sch.step()
        o.zero_grad()

    return step


@program
def tensor_lr():
    m = nn.Linear(8, 8)
    o = torch.optim.SGD(m.parameters(), torch.tensor(0.1))
    x = torch.randn(4, 8)

    def step():
        m(x).sum().backward()
        o.step()
        o.zero_grad()

    return step


@program
def shared_storage_params():
    flat = torch.randn(72)
    w = nn.Parameter(flat[:64].view(8, 8))
    b = nn.Parameter(flat[64:])
    x = torch.randn(4, 8)
    o = torch.optim.SGD([w, b], 0.1)

    def step():
        functional.linear(x, w, b).square().sum().backward()
        o.step()
        o.zero_grad()

    return step


@program
def swap_grad_views():
    m = nn.Linear(8, 8)
    flat = torch.zeros(72)
    m.weight.grad = flat[:64].view(8, 8)
    m.bias.grad = flat[64:]
    x = torch.randn(4, 8)
    o = torch.optim.Adam(m.parameters())

    def step():
        flat.zero_()
        m(x).sum().backward()
        o.step()

    return step


@program
def bf16_params():
    m = nn.Linear(8, 8).bfloat16()
    o = torch.optim.AdamW(m.parameters())
    x = torch.randn(4, 8).bfloat16()

    def step():
        m(x).float().sum().backward()
        o.step()
        o.zero_grad()

    return step
