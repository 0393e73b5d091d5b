"""The catalog of a broker: choosing what holds it, one in memory, converting one to another."""
