"""See every op below autograd, through a dispatch key of torch or a dispatch mode."""
