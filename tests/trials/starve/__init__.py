"""Trial `starve`: clients that hold what they are given, while a small one must be served."""
