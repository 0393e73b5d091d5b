"""Log-ins with SCRAM: how many a second, and what they cost the requests of others.

    python -m bench.micro.logins [--rate 200] [--seconds 8]

Rounds without and with log-ins alternate. The client salts its password once, as a pool of clients
would at different times; a log-in is a connection, ApiVersions, SaslHandshake and two tokens. The
others are one client that sends Metadata every five milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import time
from base64 import b64decode, b64encode
from struct import pack

import psutil

from kafkawire.codec.compile import encode
from kafkawire.messages.api_versions import ApiVersionsRequest
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.messages.sasl_authenticate import SaslAuthenticateRequest
from kafkawire.messages.sasl_handshake import SaslHandshakeRequest
from kafkawire.testing.process import BrokerProcess
from tests.kit.client import Client
from tests.kit.ports import free_port
from tests.kit.sasl import alter, upsertion

USER, PASSWORD = "alice", "secret"
EVERY_S = 0.005


class LogIns:
    """Log-ins of one user. `done`: how many."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.done = 0
        self._keys: tuple[bytes, bytes] | None = None

    async def log_in(self) -> None:
        client = await Client.connect(self.port)
        client.send(ApiVersionsRequest(client_software_name="b", client_software_version="1"), 3)
        await client.receive()
        client.send(SaslHandshakeRequest("SCRAM-SHA-256"), 1)
        await client.receive()
        bare = f"n={USER},r=abc"
        client.send(SaslAuthenticateRequest(f"n,,{bare}".encode()), 2)
        first = bytes((await client.receive()).auth_bytes).decode()
        parts = dict(part.split("=", 1) for part in first.split(","))
        if self._keys is None:
            salted = hashlib.pbkdf2_hmac(
                "sha256", PASSWORD.encode(), b64decode(parts["s"]), int(parts["i"])
            )
            key = hmac.digest(salted, b"Client Key", "sha256")
            self._keys = key, hashlib.sha256(key).digest()
        key, stored = self._keys
        without = f"c=biws,r={parts['r']}"
        mask = hmac.digest(stored, f"{bare},{first},{without}".encode(), "sha256")
        proof = b64encode(bytes(one ^ other for one, other in zip(key, mask, strict=True)))
        client.send(SaslAuthenticateRequest(f"{without},p={proof.decode()}".encode()), 2)
        last = await client.receive()
        assert last.error_code == 0
        self.done += 1
        client.writer.close()

    async def at_rate(self, rate: float, until: float) -> None:
        """Start log-ins evenly; rate 0: eight at a time, as fast as it goes."""
        if not rate:
            await asyncio.gather(*(self._repeat(until) for _ in range(8)))
            return
        tasks, due = [], time.perf_counter()
        while due < until:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self.log_in()))
            due += 1 / rate
        await asyncio.gather(*tasks)

    async def _repeat(self, until: float) -> None:
        while time.perf_counter() < until:
            await self.log_in()


async def others(port: int, until: float) -> list[float]:
    """The latencies of a client that is logged in, in milliseconds."""
    client, found = await Client.connect(port), []
    body = encode(MetadataRequest(topics=[]), 9)
    head = pack(">hhihB", 3, 9, 1, 0, 0)
    request = pack(">i", len(head) + len(body)) + head + body
    while time.perf_counter() < until:
        begun = time.perf_counter()
        client.writer.write(request)
        size = int.from_bytes(await client.reader.readexactly(4))
        await client.reader.readexactly(size)
        found.append((time.perf_counter() - begun) * 1000)
        await asyncio.sleep(EVERY_S)
    await client.close()
    return sorted(found)


def at(latencies: list[float], part: float) -> float:
    return latencies[min(len(latencies) - 1, int(len(latencies) * part))]


async def rounds(broker: BrokerProcess, port: int, rate: float, seconds: float) -> None:
    await alter(broker.port, upsertion(USER, PASSWORD))
    process = psutil.Process(broker.pid)
    await LogIns(port).log_in()
    for turn, speed in enumerate((None, rate, None, rate, None, 0.0)):
        until = time.perf_counter() + seconds
        log_ins, before = LogIns(port), process.cpu_times()
        waiting = [others(broker.port, until)]
        if speed is None:
            found = (await asyncio.gather(*waiting))[0]
        else:
            found, _ = await asyncio.gather(waiting[0], log_ins.at_rate(speed, until))
        after = process.cpu_times()
        cpu = (after.user + after.system - before.user - before.system) * 1e6
        each = f", CPU {cpu / log_ins.done:.0f} us per log-in" if log_ins.done else ""
        print(
            f"round {turn}: {log_ins.done / seconds:.0f} log-ins/s; others' p50 "
            f"{at(found, 0.5):.2f} ms, p99 {at(found, 0.99):.2f} ms, p99.9 "
            f"{at(found, 0.999):.2f} ms{each}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=8)
    given = parser.parse_args()
    address = f"127.0.0.1:{free_port()}"
    with BrokerProcess(listeners=[f"SASL_PLAINTEXT://{address}"]) as broker:
        asyncio.run(rounds(broker, int(address.rpartition(":")[2]), given.rate, given.seconds))


if __name__ == "__main__":
    main()
