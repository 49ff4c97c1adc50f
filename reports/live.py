"""What a live view costs the program that it shows.

A training runs in a process of its own, now with `memwatch live` on a pseudo-terminal beside it and now without, in
turns. Compared are the least processor times of the program. Of the view: what its start takes, and what it takes
from then on, as a share of the processors' time. The view runs from compiled files, as an installed one does.

    python reports/live.py > reports/live.md
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping

TURNS = 1
PROGRAM = """
import json, resource, sys, time
import torch, memwatch
from memwatch.capture.file import CaptureWriter
torch.set_num_threads(1)
torch.manual_seed(0)
block = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
model = torch.nn.TransformerEncoder(block, 4, enable_nested_tensor=False)
optimizer = torch.optim.Adam(model.parameters())
written_s, write = [], CaptureWriter.write
def timed(*args, **options):
    begun = time.perf_counter()
    write(*args, **options)
    written_s.append(time.perf_counter() - begun)
CaptureWriter.write = timed
begun_s = time.perf_counter()
with memwatch.profile(sys.argv[1]) as prof:
    begun_cpu_s = time.process_time()
    for _ in range(int(sys.argv[2])):
        model(torch.ones(4, 32, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    cpu_s = time.process_time() - begun_cpu_s
print(json.dumps({
    "cpu_s": cpu_s, "duration_s": time.perf_counter() - begun_s, "events": len(prof.timeline),
    "flushes": len(written_s), "flush_s": sum(written_s), "longest_flush_s": max(written_s),
}))
"""


def compiled(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python keeps what it compiles."""
    return {
        **{name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "memwatch-live-report"),
    }


class Viewer:
    """`memwatch live` on a pseudo-terminal, whose screen nobody looks at."""

    def __init__(self, capture: Path) -> None:
        while not (capture.exists() and capture.stat().st_size):
            time.sleep(0.05)
        self._begun_s = time.monotonic()
        pid, self._terminal = pty.fork()
        if pid == 0:
            os.execve(
                sys.executable, [sys.executable, "-m", "memwatch", "live", str(capture)], compiled(os.environ)
            )
        self._process = psutil.Process(pid)
        self.screens_bytes = 0
        self._first_screen = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        self._first_screen.wait(60)
        self.start_cpu_s, self._shown_s = self._cpu_s(), time.monotonic()

    def _read(self) -> None:
        tail = b""
        while True:
            try:
                tail = tail[-100:] + os.read(self._terminal, 1 << 16)
            except OSError:
                return
            self.screens_bytes += len(tail)
            if b"peak so far" in tail:
                self._first_screen.set()

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def quit(self) -> dict[str, float]:
        """Return what it took, and end it."""
        cpu_s, shown_s = self._cpu_s() - self.start_cpu_s, time.monotonic() - self._shown_s
        os.write(self._terminal, b"q")
        os.waitpid(self._process.pid, 0)
        processors = len(os.sched_getaffinity(0))
        share_ratio = cpu_s / (shown_s * processors)
        all_ratio = (self.start_cpu_s + cpu_s) / ((time.monotonic() - self._begun_s) * processors)
        return {
            "start_cpu_s": self.start_cpu_s,
            "view_cpu_s": cpu_s,
            "shown_s": shown_s,
            "share_ratio": share_ratio,
            "all_ratio": all_ratio,
        }


def turn(steps: int, *, is_watched: bool) -> dict[str, Any]:
    """Run the program once; return what it and the view took."""
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "a.memwatch"
        command = [sys.executable, "-c", PROGRAM, str(capture), str(steps)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            viewer = Viewer(capture) if is_watched else None
            # its end is read before the view is: the last screen is drawn after the program's last flush
            taken = json.loads(program.communicate()[0])
        if viewer is None:
            return taken
        view = viewer.quit()
        of_program_ratio = (view["start_cpu_s"] + view["view_cpu_s"]) / taken["cpu_s"]
        return {**taken, **view, "of_program_ratio": of_program_ratio}


def main(steps: int) -> None:
    """Run all turns and print the table."""
    subprocess.run(
        [sys.executable, "-c", "import memwatch.live.app, memwatch.live.watch"],
        env=compiled(os.environ),
        check=True,
    )
    turns = [turn(steps, is_watched=bool(number % 2)) for number in range(2 * TURNS)]
    alone, watched = turns[::2], turns[1::2]
    least = [min(each["cpu_s"] for each in some) for some in (alone, watched)]
    longest = [max(each["longest_flush_s"] for each in some) for some in (alone, watched)]
    flushes = [min(each["flush_s"] / each["flushes"] for each in some) for some in (alone, watched)]
    print(f"# What a live view costs\n\nWritten by `python reports/live.py {steps}`.\n")
    print(
        f"A transformer of 4 layers trains for {steps} steps, {watched[0]['events']:,} events in the curve, on "
        f"{len(os.sched_getaffinity(0))} processors; {TURNS} runs alone and {TURNS} with `memwatch live` beside them.\n"
    )
    print(
        f"The load was {os.getloadavg()[0]:.0f} at the end: where it is above the processors, others stretched "
        "the time that shares are of.\n"
    )
    print("| of the program | alone | with a view | ratio |\n| --- | --- | --- | --- |")
    print(f"| processor time, the least | {least[0]:.2f} s | {least[1]:.2f} s | {least[1] / least[0]:.3f} |")
    print(f"| a flush, the least mean | {flushes[0] * 1e3:.1f} ms | {flushes[1] * 1e3:.1f} ms | |")
    print(f"| the longest flush | {longest[0] * 1e3:.0f} ms | {longest[1] * 1e3:.0f} ms | |")
    print("\n| of the view | least | most |\n| --- | --- | --- |")
    for name, key, scale, unit in (
        ("processor time of its start", "start_cpu_s", 1, "s"),
        ("processor time from then on", "view_cpu_s", 1, "s"),
        ("as a share of all processors' time", "share_ratio", 100, "%"),
        ("the same with its start", "all_ratio", 100, "%"),
        ("with its start, as a share of the program's processor time", "of_program_ratio", 100, "%"),
    ):
        values = [each[key] * scale for each in watched]
        print(f"| {name} | {min(values):.2f} {unit} | {max(values):.2f} {unit} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 600)
