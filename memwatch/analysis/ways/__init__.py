"""Ways: changes of a program that would lower its peak, each simulated from one recording."""
