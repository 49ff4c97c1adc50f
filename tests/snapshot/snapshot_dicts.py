"""Snapshots in exactly the form that torch's C++ gives them, written by hand: the truth is known by construction."""

from __future__ import annotations

import copy

MIB = 1 << 20
BASE = 0x7F00_0000_0000
START_US = 1_790_000_000_000_000

STEP = [
    {
        "filename": "/opt/conda/lib/python3.12/site-packages/torch/nn/modules/linear.py",
        "line": 134,
        "name": "forward",
    },
    {
        "filename": "/opt/conda/lib/python3.12/site-packages/transformers/trainer.py",
        "line": 7,
        "name": "compute",
    },
    {"filename": "/home/me/train.py", "line": 40, "name": "step"},
    {"filename": "/home/me/train.py", "line": 90, "name": "<module>"},
]
LOAD = [
    {"filename": "??", "line": 0, "name": "at::native::empty_cuda(c10::ArrayRef<long>)"},
    {"filename": "/home/me/train.py", "line": 12, "name": "load"},
]


class Trace:
    """The history of one device, entry by entry, in microseconds one after the other."""

    def __init__(self, start_us=START_US, step_us=5):
        self.entries, self.time_us, self.step_us = [], start_us, step_us

    def add(self, action, address, nbytes, frames=None, stream=0, **other):
        """Append an entry as torch writes it."""
        entry = {} if frames is None else {"frames": frames}
        entry |= {"action": action, "device_free" if action == "oom" else "addr": address, "size": nbytes}
        self.entries.append({**entry, "stream": stream, "time_us": self.time_us, "pool_id": (0, 0), **other})
        self.time_us += self.step_us
        return self

    def free(self, address, nbytes, frames=None, stream=0):
        """Append the two entries of a free that nothing delays."""
        self.add("free_requested", address, nbytes, frames, stream)
        return self.add("free_completed", address, nbytes, frames, stream)


def block(address, nbytes, requested, state="active_allocated", frames=()):
    """Return a block of a segment."""
    return {
        "address": address, "size": nbytes, "requested_size": requested, "state": state, "frames": list(frames),
    }  # fmt: skip


def segment(device, blocks, stream=0, kind="small", pool=(0, 0)):
    """Return a segment with the sums that torch writes."""
    allocated = [each for each in blocks if each["state"] == "active_allocated"]
    active = [each for each in blocks if each["state"] != "inactive"]
    return {
        "device": device,
        "address": blocks[0]["address"],
        "total_size": sum(each["size"] for each in blocks),
        "allocated_size": sum(each["size"] for each in allocated),
        "active_size": sum(each["size"] for each in active),
        "requested_size": sum(each["requested_size"] for each in active),
        "stream": stream,
        "segment_type": kind,
        "segment_pool_id": pool,
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
    "expandable_segments": False, "roundup_power2_divisions": {"1": 0, "2": 0},
}  # fmt: skip


def two_devices():
    """Return a snapshot of two devices.

    The first device holds 1000 bytes (never freed) and 600 bytes (freed later) before the history begins. Then 3000
    and 5000 bytes are allocated, the 3000 are freed while another stream uses them, 400 are allocated, and memory
    runs out. The peak is 1000 + 600 + 3000 + 5000 = 9600. On the second device the peak is 2 MiB + 100.
    """
    kept, freed, first, second, last = (BASE + at * 512 for at in (0, 2, 4, 10, 20))
    zero = Trace()
    zero.add("segment_alloc", BASE, 2 * MIB, LOAD)
    zero.add("alloc", first, 3000, STEP).add("alloc", second, 5000, STEP)
    zero.free(freed, 600, STEP)
    zero.add("free_requested", first, 3000, STEP)
    zero.add("alloc", last, 400, STEP)
    zero.add("oom", 7 * MIB, 90 * MIB, STEP)
    zero.add("snapshot", 0, 0)
    blocks = [
        block(kept, 1024, 1000, frames=LOAD),
        block(freed, 1024, 0, "inactive"),
        block(first, 3072, 3000, "active_pending_free", STEP),
        block(second, 5120, 5000, frames=STEP),
        block(last, 512, 400, frames=STEP),
    ]
    end = blocks[-1]["address"] + 512
    blocks.append(block(end, BASE + 2 * MIB - end, 0, "inactive"))
    far, near = BASE * 2, BASE * 2 + 8 * MIB
    one = Trace(START_US + 2)
    one.add("segment_alloc", far, 2 * MIB, STEP).add("alloc", far, 2 * MIB, STEP)
    one.add("segment_alloc", near, 2 * MIB, STEP).add("alloc", near, 100, STEP)
    one.free(far, 2 * MIB, STEP).add("segment_free", far, 2 * MIB, STEP)
    rest = [block(near, 512, 100, frames=STEP), block(near + 512, 2 * MIB - 512, 0, "inactive")]
    annotations = [
        {"name": "forward", "stage": "START", "device": 0, "time_us": START_US + 1},
        {"name": "forward", "stage": "END", "device": 0, "time_us": START_US + 40},
    ]
    return copy.deepcopy(
        {
            "segments": [segment(0, blocks), segment(1, rest, stream=7, kind="large", pool=(0, 1))],
            "device_traces": [zero.entries, one.entries],
            "allocator_settings": SETTINGS,
            "external_annotations": annotations,
        }
    )


PINNED_PEAK_BYTES = 8 * MIB + 1024
PINNED_END_BYTES = 4 * MIB + 1024


def with_pinned_memory(*, nested=False, blocks=False):
    """Return the snapshot of two devices with pinned memory of the host.

    1024 bytes were allocated before the history. Then two blocks of 4 MiB are allocated, one is freed, and the
    allocator keeps it.

    Args:
        nested: whether the history is in a list of lists, as that of devices is.
        blocks: whether segments have blocks and sums, as those of devices have.
    """
    old, first, second = (BASE * 3 + at * 4 * MIB for at in range(3))
    trace = Trace(START_US + 1)
    for address in (first, second):
        trace.add("segment_alloc", address, 4 * MIB, LOAD).add("alloc", address, 4 * MIB, LOAD)
    trace.free(first, 4 * MIB, LOAD)
    found = []
    for address, nbytes, allocated in ((old, 1024, True), (first, 4 * MIB, False), (second, 4 * MIB, True)):
        if blocks:
            state = "active_allocated" if allocated else "inactive"
            whole = segment(0, [block(address, nbytes, nbytes, state, LOAD)])
            del whole["device"], whole["stream"]
            found.append(whole)
        else:
            found.append(
                {
                    "address": address, "size": nbytes, "allocated": allocated, "active": allocated,
                    "segment_pool_id": (0, 0), "frames": copy.deepcopy(LOAD),
                }
            )  # fmt: skip
    traces = [trace.entries] if nested else trace.entries
    return copy.deepcopy({**two_devices(), "host_segments": found, "host_traces": traces})


PEAK_BYTES = {"cuda:0": 9600, "cuda:1": 2 * MIB + 100}
END_BYTES = {"cuda:0": 6400, "cuda:1": 100}
