"""A broker of one's own for other projects' tests."""
