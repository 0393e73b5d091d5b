"""Files of a tier or a data folder: location, read-ahead and verification."""
