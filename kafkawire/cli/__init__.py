"""The command line.

`main` reads the plain form of `serve` itself, because typer costs a fifth of a start; `app`
(typer) has everything else, and a test compares both. Commands use any Kafka through
kafkawire.client; `dump`, `fsck`, `restore` and `version` need no broker. Values come from the
command line, then the environment, then a TOML file (`sources`).

Easy to get wrong: Kubernetes sets variables named KAFKAWIRE_... next to a service of that name,
so only known names and KAFKAWIRE_SET_... are read.
"""

INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 and the number of SIGINT, as shells have it."""
