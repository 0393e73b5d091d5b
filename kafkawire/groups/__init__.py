"""Consumer groups: pure machines, and the coordinator that drives them."""
