"""Which steps of a program are recorded, and what is known of the others."""
