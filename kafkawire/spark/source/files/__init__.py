"""Files of a tier or a data folder: located, read ahead and checked."""
