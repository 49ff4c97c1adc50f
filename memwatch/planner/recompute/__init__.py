"""Lower the peak at extra cost: idle buffers are freed and computed again later, or moved out and back."""
