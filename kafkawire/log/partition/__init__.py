"""One partition in memory: its index, its producers, and the plan of a read."""
