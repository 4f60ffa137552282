"""`tvlm gateway`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path | None, typer.Option("--config", "-c", help="Settings (YAML); see deployments/gateway.yaml.")]


def gateway(
    *,
    config: Config = None,
    server: Annotated[
        list[str] | None,
        typer.Option("--server", "-s", help="grpc://host:port; repeat for more.", show_default="grpc://localhost:8001"),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, show_default="8080")] = None,
    api_keys_file: Annotated[Path | None, typer.Option(help="Lines `SHA256 NAME` of accepted keys.")] = None,
    grace_s: Annotated[
        float | None, typer.Option(min=0, help="Seconds for running requests when told to stop.", show_default="10")
    ] = None,
    allow_no_keys: Annotated[bool, typer.Option("--allow-no-keys", help="Serve anybody, on any address.")] = False,
) -> None:
    """Serve OpenAI's API in front of Triton servers until Ctrl-C or SIGTERM.

    \b
    Examples:
      tvlm gateway
      tvlm gateway --server grpc://triton-a:8001 --server grpc://triton-b:8001 --port 9000
      printf %s "$KEY" | sha256sum | sed 's/-/alice/' >> keys; tvlm gateway --host 0.0.0.0 --api-keys-file keys
    """
    from gateway.server import serve  # noqa: PLC0415  (imports are most of a command's start)
    from gateway.settings import load_settings  # noqa: PLC0415

    serve(
        load_settings(
            config,
            servers=server or None,
            host=host,
            port=port,
            api_keys_file=api_keys_file.absolute() if api_keys_file else None,
            grace_s=grace_s,
            allow_no_keys=allow_no_keys or None,
        )
    )
