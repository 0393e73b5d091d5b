"""The manifest in the bucket: published, compacted, owned by one broker."""
