"""Recovery: what the journals hold after any end of the process, and what of it counts."""
