"""How memwatch comes to see every op below autograd: by a dispatch key of torch's or by a dispatch mode."""
