"""A broker with the interface of testcontainers' KafkaContainer, without containers.

    from kafkawire.testing import KafkaWireContainer as KafkaContainer

is the line to change. The methods of containers that have no meaning here (images, networks) are
accepted and have no effect; those that look into a container are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from kafkawire.codec.configs.settings import BROKER_CONFIGS
from kafkawire.testing.control import TEST_SETTINGS
from kafkawire.testing.process import BrokerProcess

PREFIX = "KAFKA_"
HOST = "127.0.0.1"


class KafkaWireContainer:
    """A broker: `start`, `stop`, `get_bootstrap_server`, or a `with` statement.

    `port`: the port that `get_exposed_port` and `with_bind_ports` name, 9093 as in testcontainers;
    the broker's own is free or chosen by `with_bind_ports`. `settings`: broker settings by Kafka's
    names. Other arguments have no effect.
    """

    def __init__(
        self,
        image: str = "kafkawire",
        port: int = 9093,
        *,
        settings: Mapping[str, object] | None = None,
        **ignored: Any,
    ) -> None:
        self.image = image
        self.port = port
        self.env: dict[str, str] = {}
        self._settings = dict(settings or {})
        self._bound_port = 0
        self._broker: BrokerProcess | None = None

    def with_env(self, key: str, value: str) -> KafkaWireContainer:
        """Set a broker setting as Confluent's images take it: KAFKA_NUM_PARTITIONS is
        num.partitions. Others have no effect."""
        self.env[key] = str(value)
        return self

    def with_envs(self, **variables: str) -> KafkaWireContainer:
        """Call `with_env` for each."""
        for key, value in variables.items():
            self.with_env(key, value)
        return self

    def with_bind_ports(self, container: int | str, host: int | None = None) -> KafkaWireContainer:
        """Listen on the port `host` of this machine; 0 or None: any free one."""
        self._bound_port = host or 0
        return self

    def with_kraft(self) -> KafkaWireContainer:
        """Return this object: there is no ZooKeeper."""
        return self

    def with_cluster_id(self, cluster_id: str) -> KafkaWireContainer:
        """Return this object: the broker chooses its cluster id."""
        return self

    def with_exposed_ports(self, *ports: int | str) -> KafkaWireContainer:
        """Return this object: the port is open to programs of this machine."""
        return self

    def with_name(self, name: str) -> KafkaWireContainer:
        """Return this object: there is no container to name."""
        return self

    def with_network(self, network: object) -> KafkaWireContainer:
        """Return this object: there is no container to connect."""
        return self

    def with_network_aliases(self, *aliases: object) -> KafkaWireContainer:
        """Return this object: there is no container to connect."""
        return self

    def with_kwargs(self, **kwargs: object) -> KafkaWireContainer:
        """Return this object: there is no container to configure."""
        return self

    def start(self, timeout: float = 30) -> KafkaWireContainer:
        """Start the broker, unless it runs. Raises BrokerFailed after `timeout` seconds."""
        if self._broker is None:
            broker = BrokerProcess(
                settings={**TEST_SETTINGS, **self._from_env(), **self._settings},
                port=self._bound_port,
                start_timeout_s=timeout,
            )
            self._broker = broker.__enter__()
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Stop the broker if it runs, and delete its data."""
        self.__exit__(None, None, None)

    def get_bootstrap_server(self) -> str:
        """Return HOST:PORT for clients."""
        return self._require_broker().bootstrap

    def get_container_host_ip(self) -> str:
        """Return the address of this machine for its own programs."""
        return HOST

    def get_exposed_port(self, port: int) -> int:
        """Return the port that the broker listens on."""
        return self._require_broker().port

    def get_logs(self) -> tuple[bytes, bytes]:
        """Return the last lines of the broker's output, and nothing for standard error, which is in
        them."""
        return self._require_broker().output.encode(), b""

    def _from_env(self) -> dict[str, str]:
        names = {key: key.removeprefix(PREFIX).lower().replace("_", ".") for key in self.env}
        return {
            name: self.env[key]
            for key, name in names.items()
            if key.startswith(PREFIX) and name in BROKER_CONFIGS
        }

    def _require_broker(self) -> BrokerProcess:
        if self._broker is None:
            raise RuntimeError("the broker was not started: call start() or use a with statement")
        return self._broker

    def __enter__(self) -> KafkaWireContainer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.__exit__(kind, error, trace)
