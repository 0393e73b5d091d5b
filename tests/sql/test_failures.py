"""Sentences of DuckDB's errors."""

from __future__ import annotations

from kafkawire.sql.engine import no_topic, sentence

TOPICS = ("orders", "my-topic", "my.topic.v2")


def test_class_and_quoted_statement_are_left_out() -> None:
    text = 'Parser Error: syntax error at or near "selec"\n\nLINE 1: selec 1\n        ^'
    assert sentence(text, "selec 1", TOPICS) == 'syntax error at or near "selec"'
    text = 'Invalid Input Error: Conversion Error: no number\nin "x"'
    assert sentence(text, "SELECT 1", TOPICS) == 'no number in "x"'
    assert sentence("", "SELECT 1", TOPICS) == "DuckDB does not say why"


def test_keyword_offset() -> None:
    text = 'Parser Error: syntax error at or near "from"'
    assert sentence(text, "select offset from orders", TOPICS).endswith(
        'write the column as "offset"'
    )
    assert sentence(text, 'select "offset" from from orders', TOPICS) == (
        'syntax error at or near "from"'
    )


def test_names_of_topics() -> None:
    text = 'Catalog Error: Table with name order does not exist!\nDid you mean "pg_am"?'
    assert sentence(text, "FROM order", TOPICS) == "there is no topic 'order'; there is \"orders\""
    assert no_topic("zzz", TOPICS) == "there is no topic 'zzz'; SHOW TABLES lists them"
    assert sentence("Parser Error: x", "FROM my.topic.v2", TOPICS) == (
        'a name with dots or dashes goes into double quotes: "my.topic.v2"'
    )
    assert sentence("Binder Error: x", 'FROM "my-topic"', TOPICS) == "x"
