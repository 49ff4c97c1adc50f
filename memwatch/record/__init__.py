"""Inside the user's program: append rows, compute nothing, hold nothing but weak references."""
