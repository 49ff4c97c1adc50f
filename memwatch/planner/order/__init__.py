"""Orders of the ops: a portfolio, the best of which is kept."""
