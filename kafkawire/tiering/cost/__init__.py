"""Costs of the remote tier: prices, traffic, estimates and the monthly budget."""
