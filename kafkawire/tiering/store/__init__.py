"""Object stores of the tier, their storage process, and their limits."""
