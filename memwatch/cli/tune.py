"""Find the setting of torch's CUDA allocator that reserves least for a recorded program.

The allocations of the program run through torch's own allocator, without a GPU, under about 35 settings. The source is
a capture, recorded on a CPU, a GPU or fake tensors, or a memory snapshot that torch wrote. If torch is not a CUDA
build, memwatch's model of the allocator runs instead, and the output says so. The last line is the variable to set. A
retry means that the allocator had to empty its cache before an allocation succeeded.

    memwatch tune train.4242.memwatch
    memwatch tune dump_snapshot.pickle --device-memory 80GiB
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.cli.common import add_device, add_json, emit, emit_json, positive, size
from memwatch.progress import working

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument(
        "source",
        type=Path,
        help="a file that `memwatch run` or `estimate -o` wrote, or torch's memory snapshot",
    )
    parser.add_argument(
        "--device-memory",
        type=size,
        metavar="SIZE",
        help="memory that torch can use, such as 80GiB; default: the device never fills up",
    )
    parser.add_argument(
        "--setting",
        action="append",
        metavar="SETTING",
        help="try this setting and the default alone, such as max_split_size_mb:128; may be given again",
    )
    parser.add_argument(
        "-n", "--rows", type=positive, default=10, help="settings to list (default %(default)s)"
    )
    add_json(parser)
    add_device(parser)


def execute(options: argparse.Namespace) -> int:
    """Print the settings; return 1 if none fits the device."""
    from memwatch.tune import tune, tune_record, tune_text

    with working("memwatch tune"):
        tuning = tune(
            options.source,
            device_memory=options.device_memory,
            settings=options.setting,
            device=options.device,
        )
    if options.json:
        emit_json(tune_record(tuning))
    else:
        emit(tune_text(tuning, rows=options.rows))
    return 0 if tuning.best.fits else 1
