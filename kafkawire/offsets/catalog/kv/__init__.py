"""The segment catalog over an ordered key-value store."""
