"""Leaks are of one device: no figure of a leak, an error or a page adds devices up."""

from __future__ import annotations

import weakref

import torch

from memwatch.kinds.leaks import LeakKind
from memwatch.leaks import Leak, TensorLeakError
from memwatch.leaks.groups import leaks_of
from memwatch.leaks.leak import Survivor
from memwatch.leaks.new_storages import NewStorage
from memwatch.words.leaks import headline, sizes_of, sizes_phrase

KIB = 1024


def survivor(key, device, nbytes, run):
    """Return what is known of a storage that one reference holds; a device that is not there is only a name."""
    storage = torch.empty(0).untyped_storage()
    made = NewStorage(weakref.ref(storage), nbytes, device, run, None, certain=True, time_s=0.0)
    return Survivor(made, key, [], None, "float32[256]")


def test_one_reference_on_two_devices_is_two_leaks():
    """Each leak has the bytes of its device on each call, and names the device."""
    runs = [0, 1]
    kept = [
        survivor("cache", device, nbytes, run)
        for device, nbytes in (("cpu", KIB), ("cuda:0", 3 * KIB))
        for run in runs
    ]
    leaks = leaks_of(kept, set(runs), per_call=True)
    assert [(leak.device, leak.nbytes, leak.count) for leak in leaks] == [
        ("cuda:0", 3 * KIB, 1),
        ("cpu", KIB, 1),
    ]
    assert "3.00 KiB on cuda:0 in 1 tensor on each call" in leaks[0].headline()
    assert "1.00 KiB in 1 tensor on each call" in leaks[1].headline()


def test_what_one_device_leaks_does_not_prove_what_another_does():
    """A reference that grew on a device in one run alone leaks nothing there."""
    kept = [survivor("cache", "cuda:0", KIB, 0), survivor("cache", "cpu", KIB, 1)]
    assert leaks_of(kept, {0, 1}, per_call=True) == []


def leak(device, nbytes):
    return Leak("retained", nbytes, 1, f"global `{device}`", (), None, "drop it", device=device)


def test_an_error_names_the_bytes_of_each_device():
    """The first line has one figure for each device, and the sum of all nowhere."""
    error = TensorLeakError([leak("cpu", KIB), leak("cuda:0", 2 * KIB), leak("cuda:0", 5 * KIB)])
    assert (
        str(error).splitlines()[0]
        == "7.00 KiB on cuda:0 and 1.00 KiB on cpu of tensors leaked (3 in 3 groups)"
    )
    assert "8.00 KiB" not in str(error)


def test_the_page_has_a_total_for_each_device():
    """Totals and kinds are by device."""
    # it imports pandas, which other tests of leaks need not search
    from memwatch.report.page.sections import leak_page_model

    model = leak_page_model([leak("cpu", KIB), leak("cuda:0", 2 * KIB)], title="", source=True)
    sizes = [{"device": "cuda:0", "nbytes": 2 * KIB}, {"device": "cpu", "nbytes": KIB}]
    assert model["totals"]["sizes"] == model["kinds"][0]["sizes"] == sizes
    assert [each["device"] for each in model["leaks"]] == ["cuda:0", "cpu"]


def test_the_host_alone_is_not_named():
    """A program without an accelerator reads as before."""
    assert sizes_phrase(sizes_of([leak("cpu", KIB), leak("cpu", KIB)])) == "2.00 KiB"
    assert "KiB in 1 tensor," in headline(
        LeakKind.CYCLE, sizes={"cpu": KIB}, count=1, per_call=False, holder="x"
    )
