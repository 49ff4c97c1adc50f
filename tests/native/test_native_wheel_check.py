"""`wheels/check.py`: which rows it accepts, and which results break a promise."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

WHEELS = Path(__file__).parents[2] / "wheels"
GOOD = {
    "torch": "2.13.0+cpu", "python": "3.11.7", "seconds": 40, "recorder": "native", "peak_bytes": 1000,
    "summary": "Peak 1000 B", "remarks": [], "packages": ["memwatch", "numpy"], "tests": {"run": 41, "failed": []},
}  # fmt: skip
PLAIN = GOOD | {"recorder": "python", "remarks": ["the recorder in Python was used"]}


@pytest.fixture(scope="module")
def check():
    sys.path.insert(0, str(WHEELS))
    try:
        spec = importlib.util.spec_from_file_location("wheels_check", WHEELS / "check.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(WHEELS))
        sys.modules.pop("build", None)
    yield module
    del sys.modules[spec.name]


def test_a_row_names_a_torch_a_python_and_a_package(check):
    assert check.Row.parse("2.13@3.11") == ("2.13", "3.11", "wheel")
    assert check.Row.parse("2.13@3.11:plain") == ("2.13", "3.11", "plain")


@pytest.mark.parametrize("text", ["2.13", "2.13@3.11:egg"])
def test_another_text_ends_the_script_with_a_line(check, text):
    with pytest.raises(SystemExit, match="is no row"):
        check.Row.parse(text)


def test_kept_promises_give_no_line(check):
    assert check.faults_of({"2.13@3.11": GOOD, "2.13@3.11:plain": PLAIN}) == []


@pytest.mark.parametrize(
    ("row", "result", "words"),
    [
        ("2.13@3.11", GOOD | {"recorder": "python"}, "the recorder is python"),
        ("2.13@3.11", GOOD | {"packages": [str(number) for number in range(13)]}, "13 packages"),
        ("2.13@3.11", GOOD | {"summary": ""}, "the summary starts with"),
        ("2.13@3.11", GOOD | {"tests": {"run": 41, "failed": ["a::b"]}}, "a::b failed"),
        (
            "2.13@3.11",
            GOOD | {"uses": {"run": 12, "failed": ["plan"]}},
            "plan failed",
        ),
        ("2.13@3.11", GOOD | {"peak_bytes": 1001}, "the peaks differ"),
        ("2.13@3.12:plain", PLAIN | {"remarks": []}, "0 lines about the recorder"),
    ],
)
def test_a_broken_promise_gives_one_line(check, row, result, words):
    (line,) = check.faults_of({"2.13@3.10": GOOD, row: result})
    assert words in line
