"""Trial `transactions`: SIGKILL of the broker and of its transactional clients, and a checker."""
