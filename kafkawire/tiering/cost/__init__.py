"""What the tier costs: prices, traffic, estimates and the daily budget."""
