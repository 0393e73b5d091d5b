"""What a handler is handed: the services of one broker."""
