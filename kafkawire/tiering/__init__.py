"""The remote tier: segments uploaded to object storage, read from there, deleted there."""
