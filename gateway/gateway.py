"""The parts of one gateway, made from its settings."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

from prometheus_client.core import GaugeMetricFamily

from gateway.backends import Health, Pool
from gateway.budget import Budget
from gateway.fetch import Fetcher
from gateway.keys import KeyRing, load_keys
from gateway.metrics import GatewayMetrics
from gateway.quotas import Quotas
from gateway.settings import GatewaySettings, keys_from_environment


class Gateway:
    """What the routes share. It answers inside `connected()`."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Read the keys (SettingsError)."""
        self.settings = settings
        self.keys: KeyRing = load_keys(settings, keys_from_environment())
        self.budget = Budget(settings.bodies_mb)
        self.fetcher = Fetcher(settings)
        self.metrics = GatewayMetrics()
        self.draining = False
        self.pool: Pool
        self.quotas: Quotas

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Watch the servers while it serves."""
        self.quotas = Quotas(self.settings)
        async with Pool(self.settings.servers) as self.pool:
            self.metrics.watch(self._gauges)
            yield

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return not self.draining and self.pool.ready

    @property
    def running(self) -> int:
        """Requests in the servers now."""
        return sum(server.running for server in self.pool.servers)

    def give_up(self) -> None:
        """The grace time is over: what still runs ends with an error that says so."""
        for server in self.pool.servers:
            server.give_up(
                f"the gateway shut down: the answer was not complete within grace_s = {self.settings.grace_s:g}"
            )

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        ready = GaugeMetricFamily("tvlm_gateway_server_ready", "1: takes requests.", labels=["server"])
        running = GaugeMetricFamily("tvlm_gateway_running_requests", "Requests in a server.", labels=["server"])
        tokens = GaugeMetricFamily("tvlm_gateway_pending_tokens", "Estimated tokens of those.", labels=["server"])
        for server in self.pool.servers:
            ready.add_metric([server.url], server.health is Health.READY)
            running.add_metric([server.url], server.running)
            tokens.add_metric([server.url], server.pending_tokens)
        yield from (ready, running, tokens)
