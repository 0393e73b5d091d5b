"""The part of a broker process that makes it a worker of `kafkawire serve --workers`.

It accepts on sockets that it got from the supervisor (kafkawire.supervisor), reports to it that it
is ready and that its event loop runs, and stops when the supervisor ends. Not imported by a broker
without workers.
"""
