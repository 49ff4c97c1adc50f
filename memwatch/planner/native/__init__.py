"""The kernels in C++: `src` has them, `library` builds and loads them, `calls` calls them.

Every kernel has a twin in Python, beside the module that uses it. The twins compute the same numbers, some hundred
times slower. They run where the library is not there.
"""
