"""`kafkawire serve --workers N`: several broker processes of one data folder, and their supervisor.

The supervisor binds all addresses, starts the workers, restarts those that crash or hang, and stops
them. It serves no client and imports neither SQLAlchemy nor the log; tests/supervisor checks that.
`plan`, `shares` and `joined_pages` are pure.
"""
