"""The manifest in the bucket: what a cluster has in its remote tier, readable without a broker."""
