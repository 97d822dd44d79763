"""Loopback ports, for servers that are asked to listen on TCP."""

from __future__ import annotations

import random
import socket

from lateack_cli.embedded.errors import EmbeddedError


def loopback_port(wanted: int, candidates: range) -> int:
    """`wanted`, or a free one of `candidates` when it is 0.

    Candidates lie below the range from which systems take the ports of outgoing connections: a
    server that is stopped and started again must not find its port taken by a client.
    """
    if wanted != 0:
        return wanted
    for port in random.sample(candidates, 200):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EmbeddedError("There is no free port on 127.0.0.1. Name one, or use sockets.")
