"""Commands about schedule topics."""
