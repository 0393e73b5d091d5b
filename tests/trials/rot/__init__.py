"""Trial `rot`: one flipped bit of a file, a database page or a row of a whole broker."""
