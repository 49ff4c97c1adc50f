"""leak.draw(): a picture by graphviz. Without graphviz: the leak as text, and the missing program."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET

import pytest
import torch

from memwatch.errors import MemwatchError
from memwatch.leaks import DrawError, find_leaks

KEPT = []
SVG = "{http://www.w3.org/2000/svg}"


def park():
    KEPT.append(torch.randn(16))


def hook():
    y = torch.randn(16, requires_grad=True).exp()
    y.register_hook(lambda grad: grad * y)


def ring():
    links = {'weight <&> "quoted"': torch.randn(16)}
    links["me"] = links


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    yield
    KEPT.clear()


def drawn(leak, path):
    """Return the texts of boxes and the (from, to) pairs of arrows in a picture."""
    leak.draw(path)
    boxes, arrows = {}, set()
    for group in ET.parse(path).iter(f"{SVG}g"):
        title = group.findtext(f"{SVG}title")
        if group.get("class") == "node":
            boxes[title] = " ".join(text.text for text in group.iter(f"{SVG}text"))
        elif group.get("class") == "edge":
            arrows.add(tuple(title.split("->")))
    return boxes, arrows


@pytest.mark.words
def test_a_retention_path_is_a_chain_from_the_root(tmp_path):
    """Every reference is an arrow, every object a box, the first is the root."""
    (leak,) = find_leaks(park)
    boxes, arrows = drawn(leak, tmp_path / "leak.svg")
    assert boxes == {"0": "root", "1": "list of 5", "2": "Tensor [16] float32"}
    assert arrows == {("0", "1"), ("1", "2")}
    text = (tmp_path / "leak.svg").read_text()
    assert "global `KEPT` of module" in text
    assert "retained: 64 B in 1 tensor" in text


def test_a_cycle_is_closed(tmp_path):
    """The last reference of a loop leads back to its first box."""
    (leak,) = find_leaks(hook)
    boxes, arrows = drawn(leak, tmp_path / "leak.svg")
    assert len(boxes) == len(leak.path)
    assert (str(len(leak.path) - 1), "0") in arrows


def test_what_hangs_on_a_cycle_starts_at_it(tmp_path):
    """The tensor beside the loop is a box below it; names with quotes and brackets do not break the picture."""
    (leak,) = find_leaks(ring)
    boxes, arrows = drawn(leak, tmp_path / "leak.svg")
    assert len(boxes) == 2
    assert {"Tensor [16] float32"} < set(boxes.values())
    assert len(arrows) == 2
    assert ("0", "0") in arrows


def test_the_suffix_chooses_the_format(tmp_path):
    """A .png is a PNG; a name without a suffix is an SVG."""
    (leak,) = find_leaks(park)
    leak.draw(tmp_path / "leak.png")
    leak.draw(str(tmp_path / "leak"))
    assert (tmp_path / "leak.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "leak").read_bytes()


@pytest.mark.words
def test_without_graphviz_the_message_says_so_and_holds_the_leak(tmp_path, monkeypatch):
    """Without the program `dot` the error names it, says how to get it, and holds the leak as text."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (leak,) = find_leaks(park)
    with pytest.raises(DrawError, match="'dot' is not installed") as caught:
        leak.draw(tmp_path / "leak.svg")
    assert isinstance(caught.value, MemwatchError)
    assert "apt install graphviz" in str(caught.value)
    assert str(leak) in str(caught.value)
    assert not (tmp_path / "leak.svg").exists()


@pytest.mark.words
def test_without_the_package_graphviz_the_message_names_the_extra_and_holds_the_leak(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "graphviz", None)
    (leak,) = find_leaks(park)
    with pytest.raises(DrawError, match=r"pip install 'memwatch\[draw\]'") as caught:
        leak.draw(tmp_path / "leak.svg")
    assert str(leak) in str(caught.value)
    assert not (tmp_path / "leak.svg").exists()


@pytest.mark.parametrize("name", ["leak.nonsense", "missing/leak.svg"])
def test_a_picture_that_cannot_be_written_says_why(tmp_path, name):
    """An unknown format or a missing folder is a DrawError with the leak as text."""
    (leak,) = find_leaks(park)
    with pytest.raises(DrawError, match=name) as caught:
        leak.draw(tmp_path / name)
    assert leak.holder in str(caught.value)
