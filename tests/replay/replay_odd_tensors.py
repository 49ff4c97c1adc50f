"""Odd programs of views, mutation, dtypes and sizes."""

from __future__ import annotations

import gc

import torch
from replay_odd import program
from torch import nn


@program
def views_of_outputs():
    x = torch.randn(64, 64)

    def step():
        y = x @ x
        return y[1:].t(), y.view(-1)[::3], torch.as_strided(y, (4, 4), (2, 1), 5)

    return step


@program
def out_ops():
    x = torch.randn(64, 64)
    buf = torch.empty(64, 64)
    small = torch.empty(0)

    def step():
        torch.mm(x, x, out=buf)
        torch.add(buf, 1, out=small if small.numel() else torch.empty(0))
        o = torch.empty(0)
        torch.mul(buf, 2, out=o)
        torch.cat([x, o], out=torch.empty(128, 64))
        torch.sort(x, out=(torch.empty(64, 64), torch.empty(64, 64, dtype=torch.long)))
        return o.sum()

    return step


@program
def dtypes():
    x = torch.randn(32, 32)

    def step():
        a = x.half()
        b = x.bfloat16()
        c = x.double()
        d = x > 0
        e = (x * 10).to(torch.int8)
        f = e.to(torch.uint8)
        return (a.float() + b.float()).double() @ c, d.sum(), e.sum() + f.sum(), d.logical_and(e > 2)

    return step


@program
def keeps_refs():
    x = torch.randn(64, 64)
    kept = []

    def step():
        kept.clear()
        y = x
        for _ in range(5):
            y = (y @ x).tanh()
            kept.append(y)
        return y.sum()

    return step


@program
def func_transforms():
    def f(w, x):
        return (x @ w).tanh().sum()

    w = torch.randn(8, 8)
    xs = torch.randn(5, 8)

    def step():
        return torch.func.vmap(torch.func.grad(f), (None, 0))(w, xs), torch.func.jvp(
            lambda w: f(w, xs), (w,), (w,)
        )

    return step


@program
def data_and_set():
    x = torch.randn(16, 16)
    p = nn.Parameter(torch.randn(16, 16))

    def step():
        y = x * 3
        p.data = y * 2
        z = p.data + 1
        q = torch.empty(0)
        q.set_(z)
        return q.sum()

    return step


@program
def resize():
    def step():
        a = torch.ones(4)
        a.resize_(8).fill_(2)
        b = a * 3
        a.resize_(2)
        return a + 1, b

    return step


@program
def storage_resize():
    x = torch.randn(8, 8)

    def step():
        a = x * 2
        b = a.sum()
        a.untyped_storage().resize_(0)
        a.untyped_storage().resize_(256)
        a.fill_(1)
        return b + a.sum()

    return step


@program
def index_put():
    x = torch.randn(16, 16)
    i = torch.tensor([1, 3, 5])

    def step():
        y = x.clone()
        y[i] = 0
        y[i, i] += 1
        y.index_add_(0, i, torch.ones(3, 16))
        y.scatter_(1, i[:, None], 2.0)
        y[y > 1] = -1
        return y

    return step


@program
def foreach():
    xs = [torch.randn(16, 16) for _ in range(4)]

    def step():
        ys = torch._foreach_mul(xs, 2)
        torch._foreach_add_(ys, xs)
        ns = torch._foreach_norm(ys)
        return torch.stack(ns).sum()

    return step


@program
def same_arg_twice():
    x = torch.randn(16, 16)

    def step():
        y = x + 1
        y.add_(y)
        y.mul_(y.t().clone())
        torch.add(y, y, out=y)
        return y

    return step


@program
def mul_scalars():
    x = torch.randn(8, 8)

    def step():
        return x * 2.5 + 3 + True + torch.tensor(2) * 1j

    return step


@program
def subclass():
    class T(torch.Tensor):
        pass

    y = torch.randn(8).as_subclass(T)

    def step():
        return (y * 2).sum()

    return step


@program
def del_in_middle():
    x = torch.randn(256, 256)

    def step():
        a = x @ x
        b = a + 1
        del a
        c = b @ x
        gc.collect()
        return c

    return step


@program
def topk_sort_cummax():
    x = torch.randn(32, 8)

    def step():
        v, i = x.topk(3)
        a, _b = x.sort()
        c, _d = x.cummax(0)
        _m, n = x.median(0)
        return v.sum() + a[0] + c[1].sum(), i, n

    return step


@program
def empty_uninit_reached():
    def step():
        e = torch.empty(16)
        f = torch.empty_like(e)
        f[:4] = 1
        return e, f

    return step


@program
def mutate_input_then_read():
    x = torch.randn(8, 8)

    def step():
        a = x * 2
        x.add_(1)
        b = x * 2
        x.sub_(1)
        return a + b

    return step


@program
def set_default_dtype_device():
    def step():
        with torch.device("cpu"):
            a = torch.ones(4, dtype=torch.float64)
        return a + torch.arange(4) + torch.linspace(0, 1, 4, dtype=torch.float64)

    return step
