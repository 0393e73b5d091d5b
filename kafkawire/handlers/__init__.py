"""One function per API, and the one table that lists them."""
