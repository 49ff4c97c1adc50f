"""Who holds the memory while the program runs: when to sample, where to search, and what to write down."""
