"""Measure the page in Chromium: its size, its first paint, and how long a click takes.

    python reports/page.py > reports/page.md

The page of a million events is made of a run of 50 steps with jittered times, as the tests make it. A click is timed
from the event until the frame is painted in which all parts show the new instant: curve, icicle, table, lines and
findings. Its CPU time is that of the page's main thread, which other programs of the machine do not make longer. Then
each other kind of click, the dearest first: those that ask for something of the whole run are slowest when it is asked
for the first time.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests"), str(HERE.parent / "tests" / "report")]

import report_readings  # noqa: E402

from memwatch.report import html  # noqa: E402
from memwatch.sizes import format_bytes  # noqa: E402

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--window-size=1440,1200",
)
OPENED, CLICKS = 5, 12
KINDS = {
    "zoom the curve": "&zoom=1e9_9e9",
    "events across": "&axis=events",
    "colour by module": "&color=module",
    "colour by phase": "&color=phase",
    "colour by holder": "&color=holder",
    "compare with the peak": "&than=peak",
    "zoom the icicle": "&cell=0",
    "group by phase and dtype": "&by=phase.dtype",
    "pick a category": "&pick=group:activation",
    "search": "&q=op91",
    "sort by name": "&sort=name:asc",
    "the tab of modules": "&tab=modules",
    "the life of a storage": "&storage=5",
}
CHOOSE = """
    const [fragment, done] = arguments;
    const shown = () => Number(document.documentElement.dataset.shown ?? 0);
    const before = shown(), start = performance.now();
    location.hash = fragment;
    const painted = new MessageChannel(); // what is posted in a frame arrives after it is laid out and painted
    painted.port1.onmessage = () => done(performance.now() - start);
    const finish = () => requestAnimationFrame(() => painted.port2.postMessage(null));
    const look = () => (shown() > before ? finish() : setTimeout(look, 1));
    look();
"""
MARKS = """
    const at = (name) => performance.getEntriesByName(name)[0]?.startTime ?? null;
    return [at("first-contentful-paint"), at("memwatch-first-chart"), at("memwatch-ready")];
"""


def browser() -> webdriver.Chrome:
    """Start Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={tempfile.mkdtemp()}"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def cpu_ms(driver: webdriver.Chrome) -> float:
    """Return the CPU time of the page's main thread so far."""
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1000 * next(each["value"] for each in metrics if each["name"] == "TaskDuration")


def measure(page: Path, events: int) -> tuple[list[str], dict[str, tuple[float, float]]]:
    """Return a row (size, the best of a few openings, clicks once the events are decoded), and two times of each click.

    The two are those of a kind of click: until it is painted, and of the main thread's CPU, in milliseconds.
    """
    driver = browser()
    try:
        opened = []
        for _ in range(OPENED):
            driver.get("about:blank")
            driver.get(page.as_uri())
            while not driver.execute_script("return document.documentElement.dataset.ready"):
                time.sleep(0.05)
            time.sleep(0.1)
            opened.append(driver.execute_script(MARKS))
        paint, chart, ready = (min(times) for times in zip(*opened, strict=True))
        first = driver.execute_async_script(CHOOSE, f"at={events // 3}")
        driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        before_ms = cpu_ms(driver)
        clicks = [
            driver.execute_async_script(CHOOSE, f"at={1 + (events - 1) * turn // (CLICKS + 1)}")
            for turn in range(1, CLICKS)
        ]
        click_cpu_ms = (cpu_ms(driver) - before_ms) / len(clicks)
        here, kinds = f"at={events // 2}", {}
        for name, more in KINDS.items():
            driver.execute_async_script(CHOOSE, here)
            before_ms = cpu_ms(driver)
            painted_ms = driver.execute_async_script(CHOOSE, here + more)
            kinds[name] = painted_ms, cpu_ms(driver) - before_ms
    finally:
        driver.quit()
    figures = [
        f"{ms:,.0f} ms"
        for ms in (
            paint,
            chart,
            ready,
            first,
            min(clicks),
            statistics.median(clicks),
            max(clicks),
            click_cpu_ms,
        )
    ]
    return [format_bytes(page.stat().st_size), *figures], kinds


def main() -> None:
    """Print the table."""
    print("# The page in Chromium\n")
    print(
        "`python reports/page.py`: the least of",
        OPENED,
        "openings;",
        CLICKS - 1,
        "instants chosen one after the other.\n",
    )
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores under a load of {load:.0f} while it ran: the times are upper bounds, the CPU is not.\n"
    )
    columns = ("events", "page", "first paint", "first curve", "all drawn", "first instant")
    print("|", " | ".join([*columns, "an instant, least", "median", "slowest", "its CPU"]), "|")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        empty = html(report_readings.empty(), Path(folder) / "empty.html")
        print(f"| 0 | {format_bytes(empty.stat().st_size)} | | | | | | | | |")
        for events in (10_000, 100_000, 1_000_000):
            page = html(report_readings.many_events(events), Path(folder) / f"{events}.html")
            row, kinds = measure(page, events)
            print("|", " | ".join([f"{events:,}", *row]), "|", flush=True)
        print(
            f"\nOther clicks on the page of {events:,} events:\n\n| click | painted | its CPU |\n| --- | ---: | ---: |"
        )
        for name, (ms, click_cpu_ms) in sorted(kinds.items(), key=lambda each: -each[1][1]):
            print(f"| {name} | {ms:,.0f} ms | {click_cpu_ms:,.0f} ms |")


if __name__ == "__main__":
    main()
