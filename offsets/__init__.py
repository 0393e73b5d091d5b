"""Native offsets: the sequential number of each record of a partition."""
