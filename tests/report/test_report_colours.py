"""The colours of the page are distinct for people with any kind of colour vision."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import memwatch.report.page
from memwatch.report.page.write import category_styles

ASSETS = Path(memwatch.report.page.__file__).parent / "assets"
STYLE = (ASSETS / "page.css").read_text(encoding="utf-8") + category_styles()
VISIONS = {
    "all cones": np.eye(3),
    # Machado, Oliveira and Fernandes 2009, of linear light, where one kind of cone is missing
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
APART = 10.0  # of CIE 1976: 2.3 is just noticeable where two colours touch
LABEL, READABLE = "#10151d", 4.5  # the text on a cell, and the contrast that WCAG asks of it
NO_GROUPS = {"root", "found", "before", "after", "budget", "bound"}


def light_of(colour: str) -> np.ndarray:
    """Return the linear light of `#rrggbb`."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    coded = np.array([int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)])
    return np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)


def seen(light: np.ndarray) -> np.ndarray:
    """Return CIELAB."""
    x = np.array(XYZ) @ np.clip(light, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def colours_of(kind: str) -> dict[str, str]:
    """Return the colours that one picture of the page uses side by side; both themes have the same."""
    found = re.findall(rf"\[data-{kind}=\"?([\w ]+)\"?\]\{{--c: ?(#[0-9a-f]{{3,6}})\}}", STYLE)
    return {name: colour for name, colour in found if name not in NO_GROUPS}


@pytest.mark.parametrize(("kind", "least"), [("category", 13), ("hue", 11), ("phase", 4), ("program", 4)])
@pytest.mark.parametrize("vision", VISIONS)
def test_colours_of_one_picture_are_apart(kind, least, vision):
    """No two groups look alike, whichever cones an eye has, and text can be read on each."""
    colours = colours_of(kind)
    assert len(colours) == least
    there = {name: seen(np.array(VISIONS[vision]) @ light_of(colour)) for name, colour in colours.items()}
    near = {
        pair: round(float(np.linalg.norm(there[pair[0]] - there[pair[1]])), 1)
        for pair in itertools.combinations(there, 2)
    }
    assert {pair: distance for pair, distance in near.items() if distance < APART} == {}
    if kind == "phase":  # no text stands on it
        return
    dark = light_of(LABEL) @ XYZ[1]
    contrast = {name: (light_of(colour) @ XYZ[1] + 0.05) / (dark + 0.05) for name, colour in colours.items()}
    assert {name: ratio for name, ratio in contrast.items() if ratio < READABLE} == {}


@pytest.mark.parametrize("vision", VISIONS)
def test_no_phase_of_a_life_looks_like_a_category(vision):
    """A table shows both side by side."""
    phases, categories = (
        {
            name: seen(np.array(VISIONS[vision]) @ light_of(colour))
            for name, colour in colours_of(kind).items()
        }
        for kind in ("phase", "category")
    )
    near = {
        (phase, category): round(float(np.linalg.norm(phases[phase] - categories[category])), 1)
        for phase, category in itertools.product(phases, categories)
    }
    assert {pair: distance for pair, distance in near.items() if distance < APART} == {}
