"""Trial `kill`: SIGKILL at random moments while clients do everything at once."""
