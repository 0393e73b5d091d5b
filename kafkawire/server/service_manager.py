"""Messages to a service manager: the broker's state, for units with `Type=notify`, and the
exit code after which it must not be started again.

The protocol is that of sd_notify(3): a datagram to the Unix socket named by NOTIFY_SOCKET. Called
by kafkawire.server.run; deploy/systemd has the unit.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping

logger = logging.getLogger(__name__)

READY, STOPPING = "READY=1", "STOPPING=1"
SUPERSEDED_CODE = 3
"""Exit code of a process whose broker was started elsewhere. Another start of it would end the
other process in the same way."""
SEND_TIMEOUT_S = 1.0
"""systemd reads its socket at once; a broken one must not hold up the start or the stop."""


def notify(state: str, environ: Mapping[str, str]) -> None:
    """Send a state; without NOTIFY_SOCKET in the environment do nothing. Failures are logged."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a socket of the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(SEND_TIMEOUT_S)
            channel.sendto(state.encode(), address)
    except OSError as error:
        logger.warning(
            "systemd was not notified of %s (%s); a unit with Type=notify waits for READY=1 until "
            "its start timeout",
            state,
            error,
        )
