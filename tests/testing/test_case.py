"""A broker for unittest, run by unittest and by pytest.

Covers: kafkawire.testing.case
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow]

TESTS = """
import sys
import unittest
from kafkawire.testing import BrokerTestCase, TopicConsumer, TopicProducer

seen = set()


class TestOrders(BrokerTestCase):
    broker_settings = {"num.partitions": 2}
    broker_options = {"clock": "manual"}

    def test_records(self):
        topic = self.new_topic(partitions=3)
        TopicProducer(self.broker.bootstrap).send(topic, b"42", partition=2)
        (record,) = TopicConsumer(self.broker.bootstrap).read(topic, 1)
        self.assertEqual((record.partition, record.value), (2, b"42"))
        self.assertIn("num.partitions=2", self.broker.command())
        self.assertEqual(self.broker.advance(60), 60)

    def test_one_broker_for_the_class(self):
        seen.add(self.broker.pid)

    def test_one_broker_for_the_class_again(self):
        seen.add(self.broker.pid)
        self.assertEqual(len(seen), 1)


class TestFailing(BrokerTestCase):
    def test_fails(self):
        with self.subTest():
            self.assertIn("kafkawire", str(self.broker.data))
        self.fail("as intended")


if __name__ == "__main__":
    unittest.main()
"""


@pytest.mark.parametrize("options", [["test_it.py"], ["-m", "pytest", "-s", "test_it.py"]])
def test_class_of_tests(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "temp").mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**kept, "TMPDIR": str(tmp_path / "temp")},
    )
    output = done.stdout + done.stderr
    assert "Ran 4 tests" in output or "3 passed" in output, output
    assert "FAILED (failures=1)" in output or "1 failed" in output, output
    (folder,) = (tmp_path / "temp").glob("kafkawire-*")  # of the class with a failed test
    assert re.search(f"the broker's data is kept in {folder}$", output, re.MULTILINE), output
