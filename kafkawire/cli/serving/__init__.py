"""`kafkawire serve`: its settings, where they come from, and the format of its log."""
