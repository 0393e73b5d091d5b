"""Numbers with their nouns, for log lines and for sentences of the command line. Pure."""


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 group", "2 groups", "1,000 entries" (plural given)."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
