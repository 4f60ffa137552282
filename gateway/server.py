"""Runs the gateway on uvicorn, and drains it when told to stop."""

from __future__ import annotations

import gc
import logging
import math
import socket
import time
from types import FrameType

import uvicorn

from gateway.app import create_app
from gateway.gateway import Gateway
from gateway.protocol import protocol_class
from gateway.settings import GatewaySettings, SettingsError

_BACKLOG = 2048


def serve(settings: GatewaySettings) -> None:
    """Serve until SIGINT or SIGTERM; running requests get `grace_s`.

    Raises:
        SettingsError: the keys can't be used, or the address can't be listened on.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol_class(settings),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        proxy_headers=False,  # nobody asks where a client is
        access_log=False,  # the gateway has its own, which holds no query and no key
        server_header=False,
        timeout_keep_alive=max(1, round(settings.idle_timeout_s)),
        timeout_graceful_shutdown=1,  # what had no end within grace_s is cut off
    )
    gc.freeze()  # what is there now will stay; to look at it again and again would hold up everybody
    with _listen(settings) as listener:
        _Server(config, app.state.gateway).run(sockets=[listener])


def _listen(settings: GatewaySettings) -> socket.socket:
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingsError(f"can't listen on {settings.host}, port {settings.port}: {error.strerror}") from None
    address = f"[{settings.host}]" if family == socket.AF_INET6 else settings.host
    print(f"gateway on http://{address}:{listener.getsockname()[1]}", flush=True)
    return listener


class _Server(uvicorn.Server):
    """uvicorn that, told to stop, says so on /health/ready and lets its requests end before it closes its port."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._drained_at = math.inf  # time.monotonic

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains; a second ends at once."""
        if self._gateway.draining:
            self.should_exit = self.force_exit = True
        self._gateway.draining = True
        self._drained_at = time.monotonic() + self._gateway.settings.grace_s

    async def on_tick(self, counter: int) -> bool:
        """Every 0.1 s: whether to end."""
        if self._gateway.draining and (self._gateway.running == 0 or time.monotonic() >= self._drained_at):
            self._gateway.give_up()
            self.should_exit = True
        return await super().on_tick(counter)
