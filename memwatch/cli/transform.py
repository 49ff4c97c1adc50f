"""Write a capture in another program's format: csv, json, speedscope, chrome, pprof, memory_viz or parquet.

`speedscope` is for https://www.speedscope.app. `chrome` is for chrome://tracing and https://ui.perfetto.dev; with
`--into` it adds memory counters and findings to a trace of torch.profiler. `memory_viz` is a pickle for torch's own
viewer, https://pytorch.org/memory_viz. `pprof` has the heap at the peak and all allocations by call stack, for `go tool
pprof` and dashboards. Without -o, memwatch writes these two beside the capture. `parquet` adds all tables to a dataset,
a folder with parts by host and rank, which Dask, DuckDB and pandas read.

    memwatch transform train.4242.memwatch csv --table storages -o storages.csv
    memwatch transform train.4242.memwatch speedscope > peak.json
    memwatch transform train.4242.memwatch chrome --into trace.json.gz -o both.json.gz
    memwatch transform train.4242.memwatch pprof && go tool pprof -http : train.4242.pb.gz
    memwatch transform train.rank0.4242.memwatch parquet -o dataset
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.capture.derived import DERIVED_BY_NAME
from memwatch.cli.common import add_device, emit, emit_path, make_room, read
from memwatch.output_files import write_whole

if TYPE_CHECKING:
    import argparse

MEMORY_VIZ = "memory_viz"
PARQUET = "parquet"
PPROF = "pprof"
CHROME = "chrome"
FORMATS = ("csv", "json", "speedscope", CHROME, PPROF, MEMORY_VIZ, PARQUET)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("capture", type=Path, help="a file that `memwatch run` wrote")
    parser.add_argument("format", choices=FORMATS, help="the format to write")
    parser.add_argument(
        "--table",
        choices=sorted(DERIVED_BY_NAME),
        default="at_peak",
        metavar="TABLE",
        help=f"the table of the csv: {', '.join(sorted(DERIVED_BY_NAME))} (default %(default)s)",
    )
    parser.add_argument(
        "--into",
        type=Path,
        metavar="TRACE",
        help="chrome: add counters and findings to a trace that torch.profiler wrote in the same run",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the file; default standard output, or with --into and -f the trace itself",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace the file if it exists")
    add_device(parser)


def execute(options: argparse.Namespace) -> int:
    """Write the file, or print it; return 0."""
    if options.into is not None:
        return _add_to_trace(options)
    if options.format == MEMORY_VIZ:
        return _write_snapshot(options)
    if options.format == PPROF:
        return _write_pprof(options)
    if options.format == PARQUET:
        return _write_dataset(options)
    from memwatch.report.export import export

    make_room(options.output, inputs=[options.capture], force=options.force)
    text = export(read(options.capture, options.device), options.format, table=options.table)
    if options.output is None:
        emit(text)
    else:
        write_whole(options.output, text, force=options.force)
    return 0


def _add_to_trace(options: argparse.Namespace) -> int:
    """Write the trace with the capture's counters and findings, and print its path; return 0."""
    from memwatch.report.export import into_trace, read_trace, trace_bytes

    if options.format != CHROME:
        options.usage_error(f"--into is for chrome, not for {options.format}")
    trace, target = options.into, options.output or options.into
    replaces_trace = options.force and target.exists() and trace.exists() and target.samefile(trace)
    make_room(target, inputs=[options.capture, *([] if replaces_trace else [trace])], force=options.force)
    merged = into_trace(read(options.capture, options.device), read_trace(trace), trace)
    write_whole(target, trace_bytes(merged, compressed=target.suffix == ".gz"), force=options.force)
    emit_path(target)
    return 0


def _write_snapshot(options: argparse.Namespace) -> int:
    """Write the memory snapshot and print its path; return 0."""
    import pickle

    from memwatch.reading import load
    from memwatch.report.memory_viz import memory_viz

    target = options.output or options.capture.with_suffix(".pickle")
    make_room(target, inputs=[options.capture], force=options.force)
    reading = load(options.capture)
    snapshot = memory_viz(reading.capture, [reading.on(device) for device in reading.devices])
    write_whole(target, pickle.dumps(snapshot), force=options.force)
    emit_path(target)
    return 0


def _write_pprof(options: argparse.Namespace) -> int:
    """Write the profile for pprof and print its path; return 0."""
    from memwatch.report.pprof import pprof

    target = options.output or options.capture.with_suffix(".pb.gz")
    make_room(target, inputs=[options.capture], force=options.force)
    write_whole(target, pprof(read(options.capture, options.device)), force=options.force)
    emit_path(target)
    return 0


def _write_dataset(options: argparse.Namespace) -> int:
    """Add the capture to the dataset and print its path; return 0."""
    from memwatch.report.export import write_dataset

    folder = options.output or options.capture.with_suffix(".parquet")
    write_dataset(read(options.capture, options.device), folder, force=options.force)
    emit_path(folder)
    return 0
