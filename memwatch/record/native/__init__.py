"""The recorder written in C++. It writes the same rows as the Python recorder in a fraction of the time.

`memwatch build` compiles it for the installed torch. Without it, memwatch uses the Python recorder.

| file | content |
| --- | --- |
| `recorder` | the backend, and the parts of one block's recorder that `memwatch.record.backend` describes |
| `binding` | the calls from C++ to Python and from Python to C++ |
| `library` | finds, builds and loads the library, and says why there is none |
| `compile` | the compilation in a process of its own |
"""

from memwatch.record.native.library import remark, remark_once
from memwatch.record.native.recorder import backend

__all__ = ["backend", "remark", "remark_once"]
