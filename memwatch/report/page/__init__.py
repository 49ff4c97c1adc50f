"""The self-contained HTML page: a plain model of it, and its text."""
