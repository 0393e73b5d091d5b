"""The segment catalog: checkpoints, segments, and which offsets lie in which."""
