"""Brokers for other projects' tests: pytest fixtures, and brokers in a child process.

The plugin is loaded into every pytest run where kafkawire is installed, so nothing else is imported
until a test uses a fixture: the names below are imported at their first use. docs/testing.md is the
guide.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkawire.testing.case import BrokerTestCase
    from kafkawire.testing.container import KafkaWireContainer
    from kafkawire.testing.control import TEST_SETTINGS, BrokerFailed, UsedFault
    from kafkawire.testing.in_process import InProcessBroker, async_broker, broker
    from kafkawire.testing.process import BrokerProcess
    from kafkawire.testing.topics import ReadRecord, TopicConsumer, TopicProducer, create_topic

__all__ = [
    "TEST_SETTINGS",
    "BrokerFailed",
    "BrokerProcess",
    "BrokerTestCase",
    "InProcessBroker",
    "KafkaWireContainer",
    "ReadRecord",
    "TopicConsumer",
    "TopicProducer",
    "UsedFault",
    "async_broker",
    "broker",
    "create_topic",
]

_MODULES = {
    "BrokerTestCase": "case",
    "KafkaWireContainer": "container",
    "ReadRecord": "topics",
    "TopicConsumer": "topics",
    "create_topic": "topics",
    "TopicProducer": "topics",
    "UsedFault": "control",
    "InProcessBroker": "in_process",
    "async_broker": "in_process",
    "broker": "in_process",
    "TEST_SETTINGS": "control",
    "BrokerFailed": "control",
    "BrokerProcess": "process",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
