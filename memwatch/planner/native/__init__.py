"""The kernels: the inner loops of the planner's searches, in C++.

`src` has them, and `library.py` builds, loads and calls them. If they cannot be loaded, no search runs, and
`planner/greedy.py` plans instead.
"""
