"""A broker for unittest: one for all tests of a class.

class TestOrders(kafkawire.testing.BrokerTestCase):
    def test_produce(self):
        producer = KafkaProducer(bootstrap_servers=self.broker.bootstrap)
"""

from __future__ import annotations

import sys
import unittest
from collections.abc import Mapping
from typing import Any, ClassVar

from kafkawire.testing.control import TEST_SETTINGS
from kafkawire.testing.process import BrokerProcess
from kafkawire.testing.topics import create_topic, unique_name


class BrokerTestCase(unittest.TestCase):
    """Tests with a broker, `self.broker`, that is started before the first and stopped after the
    last. Its data is deleted, or kept and named on standard error if one of them has failed."""

    broker: ClassVar[BrokerProcess]
    broker_settings: ClassVar[Mapping[str, object]] = {}
    """Settings in addition to TEST_SETTINGS; a subclass may override them."""
    broker_workers: ClassVar[int] = 1
    """Processes that serve; a subclass may override it."""
    broker_options: ClassVar[Mapping[str, Any]] = {}
    """More options of BrokerProcess, such as clock="manual"; a subclass may override it."""
    _failed: ClassVar[bool]

    @classmethod
    def setUpClass(cls) -> None:
        """Start the broker."""
        super().setUpClass()
        cls._failed = False
        cls.broker = BrokerProcess(
            settings={**TEST_SETTINGS, **cls.broker_settings},
            workers=cls.broker_workers,
            **cls.broker_options,
        )
        cls.broker.__enter__()
        cls.addClassCleanup(cls._stop_broker)

    @classmethod
    def _stop_broker(cls) -> None:
        failure = AssertionError("a test has failed") if cls._failed else None
        cls.broker.__exit__(type(failure) if failure else None, failure, None)
        for note in getattr(failure, "__notes__", ()):
            print(note, file=sys.stderr)

    def new_topic(self, partitions: int = 1, settings: Mapping[str, object] | None = None) -> str:
        """Create a topic and return its name, which begins with that of this test."""
        name = unique_name(self._testMethodName)
        create_topic(self.broker.bootstrap, name, partitions, settings)
        return name

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """Run the test, and remember whether it has failed."""
        counted = self.defaultTestResult() if result is None else result
        before = _failures(counted)
        done = super().run(counted)
        if _failures(counted) > before:
            type(self)._failed = True
        return done


def _failures(result: object) -> int:
    """Return the number of failures so far; pytest's results keep exceptions."""
    if isinstance(result, unittest.TestResult):
        return len(result.failures) + len(result.errors)
    return len(getattr(result, "_excinfo", None) or ())
