"""Record inside the user's program: append rows, compute nothing, and hold only weak references."""
