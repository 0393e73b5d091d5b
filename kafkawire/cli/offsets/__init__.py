"""Commands about offsets."""
