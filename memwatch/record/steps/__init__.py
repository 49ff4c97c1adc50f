"""Record only some steps of a program, and the live bytes of the others."""
