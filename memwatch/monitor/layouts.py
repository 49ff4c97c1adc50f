"""Find the address and the size of the memory of buffers in CPython, without running code of a subclass.

`sys.getsizeof` does not count the memory of `mmap.mmap` and `io.StringIO`. Their objects have the address and the size
at fixed offsets. memwatch checks these offsets with objects of a known size. If the layout differs, it finds nothing.
"""

from __future__ import annotations

import array
import ctypes
import io
import mmap
import sys
from types import ModuleType
from typing import Any, Final

from memwatch.host_allocators import PAGE_BYTES
from memwatch.signal_handlers import pass_on

BUFFERS: Final = (bytes, bytearray, str, io.BytesIO, io.StringIO, array.array, mmap.mmap)
"""The classes whose objects may have much memory without a reference to another object."""


def bytes_of_buffer(obj: Any, base: Any) -> int:
    """Return the bytes of a buffer.

    Args:
        obj: the buffer.
        base: its class or base class among `BUFFERS`.
    """
    if base is mmap.mmap:
        return len(memory_of_mmap(obj))
    if base is io.StringIO:
        return _bytes_of_text(obj)
    return int(base.__sizeof__(obj))


_PLACE_IN_MMAP: Final = 16  # offset of the address (bytes); the size follows it


def memory_of_mmap(obj: mmap.mmap) -> range:
    """Return the addresses of a mapping that `mmap.mmap` made; empty if it is closed, or if the layout is unknown.

    A memoryview of the mapping would also show its address. But while a memoryview exists, the program cannot close the
    mapping.
    """
    try:
        size = mmap.mmap.__len__(obj)
    except ValueError as error:  # it is closed
        pass_on(error)
        return range(0)
    begin, size_there = (ctypes.c_ssize_t.from_address(id(obj) + _PLACE_IN_MMAP + at).value for at in (0, 8))
    is_known = size_there == size and begin > 0 and begin % PAGE_BYTES == 0
    return range(begin, begin + size) if is_known else range(0)


_BUFFER_OF_TEXT, _SIZE_OF_TEXT, _SIZE_OF_BUFFER = 16, 32, 40  # offsets in `io.StringIO` (bytes)
_BYTES_OF_LETTER: Final = 4  # bytes of a character in its buffer


def _text_buffer(obj: io.StringIO) -> tuple[int, int, int]:
    """Return the address of the buffer of an `io.StringIO`, the characters that fit into it, and those of its text.

    As long as the program only writes, the buffer is empty, and CPython keeps a list of the written pieces.
    """
    buffer, size, text = (
        ctypes.c_ssize_t.from_address(id(obj) + place).value
        for place in (_BUFFER_OF_TEXT, _SIZE_OF_BUFFER, _SIZE_OF_TEXT)
    )
    return buffer, size, text


def _knows_text_buffers() -> bool:
    """Return whether this Python has the layout of `io.StringIO` that `_text_buffer` reads."""
    sample = io.StringIO()
    sample.write("x" * 1000)
    if _text_buffer(sample)[2] != 1000:
        return False
    sample.seek(500)
    sample.write("y")
    _, size, text = _text_buffer(sample)
    return text == 1000 and 1000 <= size < 2000


_KNOWS_TEXT_BUFFERS: Final = _knows_text_buffers()


def _bytes_of_text(obj: io.StringIO) -> int:
    """Return about the bytes that an `io.StringIO` keeps, in its buffer or in pieces."""
    if not _KNOWS_TEXT_BUFFERS:
        return 0
    _, size, text = _text_buffer(obj)
    return max(_BYTES_OF_LETTER * size, text)


def buffer_of_text(obj: io.StringIO) -> range:
    """Return the addresses of the buffer of an `io.StringIO`; empty if it has no buffer, or a small one."""
    buffer, size, _ = _text_buffer(obj) if _KNOWS_TEXT_BUFFERS else (0, 0, 0)
    nbytes = _BYTES_OF_LETTER * size
    return range(buffer, buffer + nbytes) if buffer and nbytes >= PAGE_BYTES else range(0)


_CTYPES: Final = ctypes.Structure.__mro__[1]  # the base of all types of `ctypes`
_OWNS_BUFFER: Final = _CTYPES.__dict__["_b_needsfree_"].__get__
_BYTES_IN_OBJECT: Final = 16  # a value of at most so many bytes is in the object itself


def has_ctypes_buffer(cls: type) -> bool:
    """Return whether the objects of a class are values of `ctypes` with memory beside the object."""
    if not any(base is _CTYPES for base in type.__dict__["__mro__"].__get__(cls)):
        return False
    try:
        return ctypes.sizeof(cls) > _BYTES_IN_OBJECT
    except TypeError as error:  # an abstract class
        pass_on(error)
        return False


def buffer_of_ctypes(obj: Any) -> range:
    """Return the addresses of the memory that a value of `ctypes` owns; empty if it refers to memory of others.

    `sys.getsizeof` does not count it. All of this is C code of `ctypes`.
    """
    if not _OWNS_BUFFER(obj):
        return range(0)
    begin = ctypes.addressof(obj)
    return range(begin, begin + ctypes.sizeof(obj))


def arrow_library() -> dict[str, Any]:
    """Return the names of pyarrow's compiled module. They are empty before the program imports pyarrow."""
    library = sys.modules.get("pyarrow.lib")
    return vars(library) if type(library) is ModuleType else {}


_ARROW_CLASSES: Final = ("Buffer", "Array", "ChunkedArray", "RecordBatch", "Table")


def arrow_classes() -> tuple[type, ...]:
    """Return pyarrow's classes of objects with buffers; none before the program has imported pyarrow."""
    library = arrow_library()
    return tuple(library[name] for name in _ARROW_CLASSES if name in library)


def addresses_of_arrow(obj: Any, base: Any) -> list[int]:
    """Return the addresses of some buffers of an object of pyarrow. Only its first and its last part are read.

    Args:
        obj: the object.
        base: its class among :func:`arrow_classes`.
    """
    library = arrow_library()
    try:
        if base is library["Buffer"]:
            return [int(base.__dict__["address"].__get__(obj))]
        if base is library["Array"]:
            buffers = library["Array"].buffers(obj)
            return [int(each.address) for each in buffers if each is not None and each.is_cpu]
        if base is library["ChunkedArray"]:
            number, part = base.num_chunks.__get__(obj), base.chunk
            of_part = library["Array"]
        else:
            number, part = base.num_columns.__get__(obj), base.column
            of_part = library["Array" if base is library["RecordBatch"] else "ChunkedArray"]
        places = {0, number - 1} if number else ()
        return [address for at in places for address in addresses_of_arrow(part(obj, at), of_part)]
    except Exception as error:  # another version of pyarrow, or memory of a device
        pass_on(error)
        return []
