"""`python -m kafkawire`: the command line. Wires nothing itself; see kafkawire.cli.main."""

from kafkawire.cli.main import main

if __name__ == "__main__":
    main()
