"""Trial `starve`: clients that hold on to memory and connections, while a small one must be
served."""
