"""Commands about the remote tier."""
