"""The admin requests of `kafkawire tier`."""
