"""A checker of transactional histories, and a simulated broker and clients that record them."""
