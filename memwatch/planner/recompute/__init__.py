"""Lower the peak at extra cost: buffers that would lie idle are computed again later, or moved out and back."""
