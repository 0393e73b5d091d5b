"""The Fetch path."""
