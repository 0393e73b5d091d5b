"""Hostile trials of a whole broker: `python -m tests.trials --minutes 30 --seed 1`.

Each trial drives a broker process from outside, over sockets and files, and judges it by checkers
that share no code with the product's own checks. CONTRIBUTING.md says how to run them.
"""
