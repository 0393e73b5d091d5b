"""From a bucket alone to a data folder: evidence, a plan, and the rows of it."""
