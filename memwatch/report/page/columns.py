"""Columns as text for the page: integers as zigzag varints, gzipped, in base64. A text is an index into `Words`.

`web/src/codec.ts` reads them. An event of a long run takes about two bytes this way.
"""

from __future__ import annotations

import base64
import gzip
import json
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import ArrayLike, NDArray


class Packed(TypedDict):
    """One column: base64 of gzipped varints, and how to read it."""

    kind: str
    """`int` or `text` (codes into the page's words)."""

    delta: bool
    """Whether each value is the difference to the one before."""

    data: str


class Block(TypedDict):
    """One table."""

    rows: int
    columns: dict[str, Packed]


def compress(data: bytes) -> str:
    """Return bytes as base64 of gzip; equal bytes give equal text."""
    return base64.b64encode(gzip.compress(data, compresslevel=6, mtime=0)).decode("ascii")


def varints(values: NDArray[np.int64]) -> bytes:
    """Return integers as zigzag LEB128 varints (the encoding of Protocol Buffers' `sint64`)."""
    zigzag = ((values << 1) ^ (values >> 63)).astype(np.uint64)
    sizes = np.ones(len(zigzag), dtype=np.int64)
    for size in range(1, 10):
        sizes += zigzag >= np.uint64(1 << (7 * size))
    starts = np.cumsum(sizes) - sizes
    out = np.zeros(int(sizes.sum()), dtype=np.uint8)
    for place in range(int(sizes.max(initial=0))):
        rows = np.flatnonzero(sizes > place)
        septet = (zigzag[rows] >> np.uint64(7 * place)) & np.uint64(0x7F)
        more = np.where(sizes[rows] > place + 1, 0x80, 0).astype(np.uint64)
        out[starts[rows] + place] = septet | more
    return out.tobytes()


def pack_ints(values: ArrayLike, *, delta: bool = False, kind: str = "int") -> Packed:
    """Return a packed column of integers. `delta` stores differences, which are small if neighbours are similar."""
    column = np.asarray(values, dtype=np.int64)
    return Packed(
        kind=kind, delta=delta, data=compress(varints(np.diff(column, prepend=0) if delta else column))
    )


class Words:
    """The texts of the page, each stored once and known by a number; `hide` rewrites each before it is stored."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        self._hide = hide
        self._ids: dict[str, int] = {}
        self._texts: list[str] = []

    def intern(self, text: str) -> int:
        """Return the number of a text."""
        if text not in self._ids:
            self._ids[text] = len(self._texts)
            self._texts.append(self._hide(text))
        return self._ids[text]

    def codes(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Return the numbers of a column of texts."""
        codes, uniques = pd.factorize(np.asarray(list(texts), dtype=object))
        ids = np.fromiter((self.intern(str(text)) for text in uniques), dtype=np.int64, count=len(uniques))
        return ids[codes] if len(ids) else np.zeros(0, dtype=np.int64)

    def pack(self) -> str:
        """Return all texts, as a packed JSON list."""
        return compress(json.dumps(self._texts, ensure_ascii=False).encode("utf-8"))


def pack_frame(frame: pd.DataFrame, words: Words, *, delta: Iterable[str] = ()) -> Block:
    """Return a packed table: text columns as numbers of words, all others as integers."""
    close = set(delta)
    columns = {
        str(name): pack_ints(words.codes(column), kind="text")
        if pd.api.types.is_string_dtype(column.dtype)
        else pack_ints(column.to_numpy(), delta=str(name) in close)
        for name, column in frame.items()
    }
    return Block(rows=len(frame), columns=columns)
