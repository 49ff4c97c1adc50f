"""Orders of the ops with a low peak, without recompute. Several methods search, and the best result is kept."""
