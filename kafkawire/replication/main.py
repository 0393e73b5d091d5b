"""The follower process: `python -P -m kafkawire.replication.main PARENT`.

It reads its options as one frame, responds with one frame when it serves, and exits when its input
ends (the supervisor has closed it or has died) or at SIGTERM. A folder that cannot be used, or a
disk that fails, ends it with code 1 and a sentence on standard error.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import ssl
import sys
from contextlib import suppress
from typing import NoReturn

from kafkawire import log_format
from kafkawire.childprocess.child_end import begin
from kafkawire.childprocess.frames import pack, read_frame, write_frame
from kafkawire.replication import certificate
from kafkawire.replication.failures import DiskFailed, FollowerError
from kafkawire.replication.follower import Follower
from kafkawire.replication.machine import Files, monotonic
from kafkawire.replication.options import FollowerOptions, FollowerReady
from kafkawire.replication.server import FollowerServer

logger = logging.getLogger("kafkawire.replication.main")  # it runs as __main__


def main() -> None:
    # Ctrl-C in a terminal is for the supervisor, which ends this process.
    sink, _ = begin((signal.SIGHUP, signal.SIGINT), killed_with_parent=False)
    # At once, here and below: what it has acknowledged is durable, so there is nothing to finish.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    frame = read_frame(0)
    options = None if frame is None else pickle.loads(frame)
    if not isinstance(options, FollowerOptions):
        os._exit(0)  # the supervisor has ended
    log_format.setup(options.log_level, options.log_format, "follower")
    ready = serve(options)
    with suppress(BrokenPipeError):
        write_frame(sink, *pack(ready))
    while os.read(0, 1024):
        pass
    os._exit(0)  # without waiting for threads


def serve(options: FollowerOptions) -> FollowerReady:
    """Open the folder and serve in threads. Ends the process if that is not possible."""
    try:
        follower = Follower(Files(), options.folder)
        context = tls_context(options)
    except (FollowerError, DiskFailed) as failure:
        end(str(failure))
    except OSError as failure:
        end(f"the certificate in {options.folder} cannot be used: {failure}")
    listeners = [socket.socket(fileno=each) for each in options.descriptors]
    FollowerServer(follower, listeners, options.cluster_id, monotonic, end, context=context).start()
    identity = follower.identity
    logger.info("serves copies in %s as replica %s", options.folder, identity.replica_id.hex())
    return FollowerReady(identity.replica_id, identity.key)


def tls_context(options: FollowerOptions) -> ssl.SSLContext | None:
    """Return the TLS context of the follower; None if its connections are not encrypted. Raises
    OSError, FollowerError, DiskFailed."""
    if not options.encrypts:
        return None
    found = certificate.load_or_make(Files(), options.folder)
    return certificate.server_context(found, options.folder)


def end(reason: str) -> NoReturn:
    """Print a sentence and end the process, from any thread."""
    print(f"kafkawire follower: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
