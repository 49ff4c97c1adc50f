"""Orders of the ops with a low peak, without recompute: several methods, of which the best result is kept."""
