"""What autograd saves for backward: the hooks that see it, and how a program is kept from noticing them."""
