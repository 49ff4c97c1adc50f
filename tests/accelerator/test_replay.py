"""Plans and replays of a program that ran on the device: its bytes, its generators, its pinned memory."""

from __future__ import annotations

import pretend
import torch

import memwatch
from memwatch.replay.api import plan, replay
from memwatch.replay.measure import measure_peak

KIB = 1024
DEVICE, OTHER = "pretend:0", "pretend:1"
PAGE = 256 * KIB


def chain(start):
    """A chain whose links the second half reads again, last one first."""
    links = [start]
    for _ in range(5):
        links.append(links[-1].sin())
    total = links[-1]
    while links:
        total = total.mul(links.pop())
    return total


def recorded(program):
    with memwatch.profile(replay=True) as prof:
        result = program()
    return prof, result


def test_the_measured_peak_is_the_allocators():
    """A replay measures its peak with the device's counters."""
    start = torch.rand(PAGE // 4, device=DEVICE)
    before = pretend.stats(DEVICE)["allocated_bytes.all.current"]
    pretend.reset_peaks()
    with measure_peak(DEVICE) as measured:
        chain(start)
    assert measured.peak_increase_bytes == pretend.stats(DEVICE)["allocated_bytes.all.peak"] - before


def test_a_plan_counts_and_reaches_the_peak_of_the_device():
    """Program peak, planned peak and the peak of the replay, with recompute, by the device's own counters."""
    start = torch.rand(PAGE // 4, device=DEVICE)
    prof, _ = recorded(lambda: chain(start))
    planned = plan(prof, budget="60%")
    assert prof.device == DEVICE
    assert planned.program_peak_increase_bytes == prof.peak_increase_bytes
    assert planned.peak_increase_bytes < planned.program_peak_increase_bytes
    result = replay(planned)
    assert result.identical
    assert result.peak_increase_bytes == planned.peak_increase_bytes


def test_offloaded_buffers_go_to_pinned_memory():
    """An offloaded buffer leaves the device and comes back with the same bytes."""
    start = torch.rand(PAGE // 4, device=DEVICE)
    prof, _ = recorded(lambda: chain(start))
    planned = plan(prof, budget="85%", recompute=False, offload=True)
    result = replay(planned)
    assert result.identical
    assert result.moved_bytes == planned.moved_bytes > 0
    assert result.peak_increase_bytes == planned.peak_increase_bytes
    assert pretend.pinned_bytes() == 0


def test_a_replay_draws_what_the_program_drew():
    """From the default generators of both devices and from one of the program's own."""
    own = torch.Generator(device=DEVICE).manual_seed(5)

    def program():
        first = torch.rand(1000, device=DEVICE) + torch.rand(1000, device=DEVICE, generator=own)
        return first, torch.randn(1000, device=OTHER) * 2

    prof, _ = recorded(program)
    result = replay(plan(prof, order="program", recompute=False))
    assert result.identical
    assert result.num_checked


def test_states_of_generators_are_put_back():
    """A replay leaves the device's generators as it found them."""
    prof, _ = recorded(lambda: torch.rand(100, device=DEVICE))
    torch.manual_seed(3)
    planned = plan(prof, order="program", recompute=False)
    replay(planned)
    after = torch.rand(5, device=DEVICE)
    torch.manual_seed(3)
    assert torch.equal(after.cpu(), torch.rand(5, device=DEVICE).cpu())


def test_the_backend_moves_buffers_to_the_host():
    """With `offload` a step stays under a budget of the device's own count, which no order reaches."""
    weights = [torch.rand(64, 64, device=DEVICE, requires_grad=True) for _ in range(4)]
    start = torch.rand(512, 64, device=DEVICE)

    def program(x):
        for weight in weights:
            x = (x @ weight).sin()
        return x

    def device_peak(call):
        for weight in weights:
            weight.grad = None
        before = pretend.stats(DEVICE)["allocated_bytes.all.current"]
        pretend.reset_peaks()
        call(start).sum().backward()
        return pretend.stats(DEVICE)["allocated_bytes.all.peak"] - before

    eager_bytes = device_peak(program)
    options = {"budget": "75%", "recompute": False, "offload": True, "strict": True, "time_limit_s": 2.0}
    call = torch.compile(program, backend="memwatch", options=options)
    wanted = [weight.grad.clone() for weight in weights]
    peaks = [device_peak(call) for _ in range(4)]
    assert all(torch.equal(weight.grad, grad) for weight, grad in zip(weights, wanted, strict=True))
    assert peaks[-1] <= 0.75 * eager_bytes, (peaks, eager_bytes)
