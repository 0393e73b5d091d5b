"""Object stores, and the process and the limits through which the tier uses them."""
