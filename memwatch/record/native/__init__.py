"""The hot path in C++: the same rows as the Python recorder writes, for a fraction of the time.

`memwatch build` builds it for the torch that is installed; without it the Python recorder does the work.
"""
