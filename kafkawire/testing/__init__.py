"""A broker for other projects' tests: a pytest plugin, and a broker as a child process.

The plugin is loaded into every pytest run where kafkawire is installed, so it imports nothing until
a test uses a fixture.
"""
