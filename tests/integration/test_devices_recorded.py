"""Captures with allocator events of two devices.

No accelerator is needed. A program runs on the host, and some of its storages, with their blocks, are then assigned
to another device. The program's sizes give the expected figures.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import memwatch
from memwatch.reading import Reading

KIB = 1024
NUMBERS_BYTES = 32
"""Bytes of an op's numbers on the host, in tensors of a few bytes."""


def moved(capture, chosen):
    """Return the capture as if the chosen storages lay on `cuda:0`: their births and the events at their addresses."""
    strings = [*capture.strings, "cuda:0"]
    births, events = dict(capture.tables["births"]), dict(capture.tables["allocator"])
    there = np.isin(births["storage"], chosen)
    births["device"] = np.where(there, len(strings) - 1, births["device"])
    events["device"] = np.where(
        np.isin(events["address"], births["address"][there]), len(strings) - 1, events["device"]
    )
    return replace(capture, strings=strings, tables={**capture.tables, "births": births, "allocator": events})


@pytest.fixture(scope="module")
def recorded():
    """Record two independent chains of ops, and move one of them to the accelerator."""
    with memwatch.profile(replay=True) as prof:
        kept = [torch.zeros(64 * KIB), torch.zeros(16 * KIB)]
        for _ in range(3):
            kept += [kept[-2] + 1, kept[-1] + 1]
    del kept
    sizes = prof.storages["nbytes"]
    return moved(prof.capture, sizes.index[sizes == 256 * KIB])


def test_blocks_count_on_their_own_device(recorded):
    """There are four storages of 256 KiB there and four of 64 KiB here. The sum of both is not a peak of either."""
    reading = Reading(recorded)
    assert reading.devices == ["cuda:0", "cpu"]
    assert reading.peak_increase_bytes == 4 * 256 * KIB
    here_bytes = reading.on("cpu").peak_increase_bytes
    assert 0 <= here_bytes - 4 * 64 * KIB <= NUMBERS_BYTES
    assert set(reading.timeline["delta_bytes"].abs()) == {0, 256 * KIB}


def test_numbers_given_to_ops_are_workspace_of_the_host(recorded):
    """The host has no other bytes than its own, and a storage of either device is one row."""
    reading = Reading(recorded)
    here, there = reading.on("cpu").storages, reading.storages
    assert set(there["nbytes"]) == {256 * KIB}
    assert 256 * KIB not in set(here["nbytes"])
    assert len(here.query("origin == 'op'")) == len(there.query("origin == 'op'")) == 4


@pytest.mark.parametrize(("device", "nbytes"), [("cuda:0", 256 * KIB), ("cpu", 64 * KIB)])
def test_a_plan_is_of_the_device_of_its_reading(recorded, device, nbytes):
    """Program peak and plan count the bytes of one device."""
    plan = memwatch.plan(Reading(recorded).on(device), order="program", recompute=False)
    assert 0 <= plan.program_peak_increase_bytes - 4 * nbytes <= NUMBERS_BYTES


def test_a_plan_of_a_capture_is_of_the_accelerator(recorded):
    """Without a named device it is the device that the profile describes."""
    assert memwatch.plan(recorded, order="program").program_peak_increase_bytes == 4 * 256 * KIB


def test_a_device_whose_allocator_reports_nothing_counts_by_its_storages():
    """Births and deaths that the recorder saw count where the allocator of a device tells nothing."""
    with memwatch.profile() as prof:
        large = torch.zeros(64 * KIB)
        small = torch.zeros(16 * KIB)
        del large
    del small
    sizes = prof.storages["nbytes"]
    capture = moved(prof.capture, sizes.index[sizes == 256 * KIB])
    events = capture.tables["allocator"]
    heard = np.array(capture.text(events["device"])) == "cpu"
    silent = {name: column[heard] for name, column in events.items()}
    reading = Reading(replace(capture, tables={**capture.tables, "allocator": silent}))
    assert reading.device == "cuda:0"
    assert reading.peak_increase_bytes == 256 * KIB
    assert reading.timeline["live_bytes"].tolist()[-1] == reading.baseline_bytes
