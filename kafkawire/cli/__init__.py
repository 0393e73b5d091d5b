"""The command line.

`main` starts `serve` without typer, whose import takes a fifth of a start; the options of `serve`
are declared once, in a table (`serving.options`). `app` (typer) has all commands and their help.
Commands use any Kafka through kafkawire.client; `dump`, `fsck`, `restore` and `version` need no
broker. Settings of `serve` come from the command line, then the environment, then a TOML file
(`serving.sources`). Imports go down:
`app` names the commands, a package has the commands of one group, all of them use `shared`.

Easy to get wrong: Kubernetes sets variables named KAFKAWIRE_... next to a service of that name,
so only known names and KAFKAWIRE_SET_... are read.
"""

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the number of SIGINT, as in shells."""
