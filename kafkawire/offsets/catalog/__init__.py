"""The segment catalog: checkpoints, segments, and the offset ranges in them."""
