"""Lower the peak by computing again, or moving out, what would lie idle; the price is extra cost."""
