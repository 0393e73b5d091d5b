"""`python -m kafkawire`: the command line. Wires nothing itself; see kafkawire.cli.app."""

from kafkawire.cli.app import main

if __name__ == "__main__":
    main()
