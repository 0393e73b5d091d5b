"""The Produce path."""
