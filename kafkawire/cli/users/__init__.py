"""Commands about the users of log-ins."""
