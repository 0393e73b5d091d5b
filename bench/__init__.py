"""The benchmark: a native load client (native/), cells as data, targets, peers, plots.

It is a program separate from the broker: nothing in kafkawire imports it, and it imports nothing of
kafkawire, so that it drives any broker that speaks the protocol. `python -m bench`.
"""
