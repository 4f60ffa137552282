"""What a server says of itself when nothing runs: read from /metrics, and from the replica's own figures."""

from __future__ import annotations

import time
import urllib.request

from client.serving.server import Endpoints

# every gauge that must be at its start value again once all requests have ended
GAUGES = (
    "tvlm_waiting_requests",
    "tvlm_running_sequences",
    "tvlm_encode_tokens",
    "tvlm_prefill_tokens",
    'tvlm_embedding_pages{state="held"}',
)


def samples(server: Endpoints) -> dict[str, float]:
    """All samples of the product, by name and labels as they are printed."""
    with urllib.request.urlopen(server.metrics, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if line.startswith("tvlm_"):
            series, _, value = line.rpartition(" ")
            found[series] = float(value)
    return found


def total(found: dict[str, float], name: str) -> float:
    """The sum of all series whose text begins so."""
    return sum(value for series, value in found.items() if series.startswith(name))


def wait_until_idle(server: Endpoints, limit_s: float = 60.0) -> dict[str, float]:
    """The gauges of work in progress, once they are all 0 or `limit_s` is over.

    Raises:
        OSError: the server has not answered by then.
    """
    deadline = time.monotonic() + limit_s
    while True:
        over = time.monotonic() > deadline
        try:
            now = samples(server)
        except OSError:  # it may be restarting
            if over:
                raise
        else:
            left = {name: total(now, name) for name in GAUGES}
            if over or not any(left.values()):
                return left
        time.sleep(0.2)
