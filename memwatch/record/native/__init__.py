"""The recorder written in C++: the same rows as the Python recorder writes, for a fraction of the time.

`memwatch build` compiles it for the torch that is installed; without it the Python recorder does the work.

| file | what it is |
| --- | --- |
| `recorder` | the backend, and the parts of one block's recorder, as `memwatch.record.backend` asks for them |
| `ops`, `packs`, `allocator`, `kernels` | those parts: each keeps an object of C++'s and adds what is Python's |
| `callbacks` | what C++ reads and calls of Python; `src/callbacks.h` binds it |
| `extension` | what Python calls of C++ |
| `library`, `compile`, `cache` | find, build and load the library |
| `unbuilt` | what to tell who could have it |
"""

from memwatch.record.native.library import remark, remark_once
from memwatch.record.native.recorder import backend

__all__ = ["backend", "remark", "remark_once"]
