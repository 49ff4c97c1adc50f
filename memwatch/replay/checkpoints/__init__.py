"""Train with a plan: choose the regions of the forward to checkpoint, and the results that each region saves."""
