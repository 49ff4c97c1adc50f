"""Find the holders of memory while the program runs: when to sample, where to search, and which rows to write."""
