"""Choosing the ports of a server."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection
from dataclasses import dataclass

from client.serving.errors import ServeError

_USUAL = {"http": 8000, "grpc": 8001, "metrics": 8002}


@dataclass(frozen=True)
class Ports:
    """The three ports of a tritonserver."""

    http: int
    grpc: int
    metrics: int


def choose_ports(host: str, http: int | None = None, grpc: int | None = None, metrics: int | None = None) -> Ports:
    """The asked ports; for those left out Triton's usual ones, or the next that are free.

    Raises:
        ServeError: an asked port is in use, or asked twice.
    """
    asked = {"http": http, "grpc": grpc, "metrics": metrics}
    taken: set[int] = set()
    for name, port in asked.items():
        if port is None:
            continue
        if port in taken:
            raise ServeError(f"port {port} is asked for twice; give --{name}-port a port of its own")
        if not _is_free(host, port):
            raise ServeError(
                f"port {port} is in use; stop what listens there, give another --{name}-port, "
                f"or leave --{name}-port out to take a free one"
            )
        taken.add(port)
    chosen: dict[str, int] = {}
    for name, port in asked.items():
        chosen[name] = port if port is not None else next_free(host, _USUAL[name], taken)
        taken.add(chosen[name])
    return Ports(**chosen)


def next_free(host: str, first: int, taken: Collection[int] = ()) -> int:
    """The first port from `first` up that is free and not in `taken` (ServeError)."""
    for port in range(first, 65536):
        if port not in taken and _is_free(host, port):
            return port
    raise ServeError(f"no free port from {first} up; give the ports yourself (--http-port, --grpc-port, ...)")


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        # With this a port whose last connections are just closing counts as free, one that is listened on does not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ServeError(
                    f"can't listen on {host}, port {port}: {error.strerror}; give another --host"
                ) from None
            return False
        return True
