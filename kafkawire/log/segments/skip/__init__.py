"""Give up damaged batches of a segment, on an operator's request."""
