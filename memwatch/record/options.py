"""The options of a recording, and the choice of the recorder: the fastest that works here and has the options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch

from memwatch._torch.fake import is_fake_mode_on
from memwatch._torch.modes import require_modes
from memwatch._torch.tensors import IDENTITY_IS_ADDRESS
from memwatch.device_names import kind_of
from memwatch.errors import MemwatchError, OptionError
from memwatch.record import native, python
from memwatch.record.steps import KEEPS
from memwatch.signal_handlers import pass_on
from memwatch.sizes import parse_bytes

if TYPE_CHECKING:
    import os

    from memwatch.record.backend import Backend
    from memwatch.record.steps import Schedule

NO_LIMIT: Final = 1 << 62
"""Bytes that no device can have."""
_DEVICE: Final = re.compile(r"[a-z_0-9]+(:[0-9]+)?")

Size = int | str


@dataclass(frozen=True)
class DeviceLimits:
    """The limit of each device, in bytes.

    Attributes:
        every: the limit of a device that is not named.
        named: limits by name. `cuda` is the limit of each CUDA device without a limit of its own.
    """

    every: int = NO_LIMIT
    named: Mapping[str, int] = field(default_factory=dict)

    def of(self, device: str) -> int:
        """Return the limit of a device."""
        return self.named.get(device, self.named.get(kind_of(device), self.every))


def read_limits(limit: Size | Mapping[str, Size] | None, option: str = "limit_bytes") -> DeviceLimits | None:
    """Return the limits for a size or for sizes by device; None if `limit` is None.

    Args:
        limit: the size or the sizes.
        option: the name of the option, for errors.

    Raises:
        SizeError: a size cannot be read.
        OptionError: a name is not the name of a device.
    """
    if limit is None:
        return None
    if not isinstance(limit, Mapping):
        return DeviceLimits(parse_bytes(limit))
    wrong = [name for name in limit if not _is_device(str(name))]
    if wrong:
        raise OptionError(f"{option} has a limit of {wrong[0]!r}; name devices such as 'cpu' or 'cuda:0'")
    return DeviceLimits(named={str(name): parse_bytes(size) for name, size in limit.items()})


def _is_device(name: str) -> bool:
    """Return True for the name of a device, whether this machine has the device or not."""
    try:
        return _DEVICE.fullmatch(name) is not None and torch.device(name) is not None
    except RuntimeError as error:
        pass_on(error)
        return False


@dataclass(frozen=True)
class Options:
    """The options of `memwatch.profile()`, see there, and those that only memwatch sets.

    Attributes:
        holders_from_bytes: holders are searched for while the block's own live bytes on a device are at least this.
    """

    path: str | os.PathLike[str] | None = None
    stacks: bool = True
    holders: bool = True
    allocator: bool = True
    intercept: str = "auto"
    replay: bool = False
    limits: DeviceLimits | None = None
    force: bool = False
    schedule: Schedule | None = None
    keep: str = "all"
    holders_from_bytes: int = 0

    def __post_init__(self) -> None:
        """Check the interceptor where the options are given, not where the block begins."""
        if self.intercept not in {"auto", "mode", "key"}:
            raise MemwatchError(f"intercept={self.intercept!r} is unknown; use 'auto', 'mode' or 'key'")

    @property
    def chooses_steps(self) -> bool:
        """Whether some steps are not kept."""
        return self.schedule is not None or self.keep != "all"


class Choice:
    """The recorder and the interceptor of a block, chosen before the recording begins.

    Attributes:
        backend: the implementation of the recorder.
        remarks: notes for the user about the choice, each with a kind and a sentence.
        is_estimate: whether the block was entered under a FakeTensorMode. Then its figures hold for real tensors of
            the same sizes.
        by_mode: whether a dispatch mode sees the ops. An estimate needs this. A fake mode runs ops inside an op, and
            they make tensors that only a dispatch mode does not see.

    Raises:
        MemwatchError: this torch does not support `options.intercept`.
    """

    def __init__(self, options: Options) -> None:
        intercept = options.intercept
        self.backend: Backend = _backend(for_replay=options.replay)
        faster = native.remark_once() if self.backend is python.BACKEND and not options.replay else ""
        self.remarks = [("recorder", faster)] if faster else []
        self.is_estimate = is_fake_mode_on()
        _require_steps(options, is_estimate=self.is_estimate)
        # the check whether the key works registers kernels for every op, which takes a second; "mode" skips it
        if intercept == "key" and not self.backend.key_works():
            raise MemwatchError("the dispatch key does not work in this torch; use profile(intercept='mode')")
        self.by_mode = (
            intercept == "mode" or (intercept == "auto" and self.is_estimate) or not self.backend.key_works()
        )
        if self.by_mode:
            require_modes()


def _require_steps(options: Options, *, is_estimate: bool) -> None:
    """Raise a MemwatchError if these options about steps are wrong or conflict with other options."""
    if options.keep not in KEEPS:
        raise MemwatchError(f"keep={options.keep!r} is unknown; use 'all' or 'peaks'")
    if options.schedule is not None and not callable(options.schedule):
        raise MemwatchError(
            f"schedule={options.schedule!r} is not a schedule; use memwatch.schedule(wait=..., active=...)"
        )
    if options.chooses_steps and options.replay:
        raise MemwatchError("replay=True needs every op of the block; leave out schedule and keep")
    if options.chooses_steps and (is_estimate or not options.allocator):
        what = "an estimate under a FakeTensorMode has none" if is_estimate else "leave out allocator=False"
        raise MemwatchError(f"a schedule, and keep='peaks', need the allocator's events; {what}")


def _backend(*, for_replay: bool) -> Backend:
    """Return the native backend if it is built and works with this torch."""
    # a replay needs the arguments as Python objects, so the native recorder would save no time
    if not for_replay and IDENTITY_IS_ADDRESS:
        compiled = native.backend()
        if compiled is not None:
            return compiled
    return python.BACKEND
