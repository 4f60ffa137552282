"""From a deployment file to a server: composes what is missing or stale, then starts it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from client.serving.errors import ServeError
from client.serving.ports import Ports
from client.serving.server import Server
from python_backends.deployment import load_deployment


def open_server(deployment: Path, output: Path, console: Console, ports: Ports, host: str = "127.0.0.1") -> Server:
    """A server of a deployment, composed; it starts when the `with` block is entered.

    Raises:
        DeploymentError: the deployment file is at fault.
        ServeError: the deployment can't be built.
    """
    values = load_deployment(deployment)
    compose(deployment, output, console, force=False)
    return Server(output, ports, host, deployment=values)


def compose(deployment: Path, output: Path, console: Console, *, force: bool) -> None:
    """Build a deployment into a folder, showing progress; does nothing when it is up to date and not `force`d.

    Raises:
        DeploymentError: the deployment file is at fault.
        ServeError: it can't be built.
    """
    from build_engines import BuildError, build, is_stale  # noqa: PLC0415  (slow to import)

    try:
        if not force and not is_stale(deployment, output):
            return
        with console.status(f"Building {output}") as status:
            built = build(deployment, output, progress=lambda step: status.update(f"Building {output}: {step}"))
    except BuildError as error:
        raise ServeError(str(error)) from error
    kept = f", kept {', '.join(built.reused)}" if built.reused else ""
    console.print(f"Built {output} in {built.seconds:.1f} s{kept}", soft_wrap=True)
