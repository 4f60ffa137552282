"""The `tvlm` command line."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from client.serving.errors import ServeError
from client.serving.ports import choose_ports
from client.status.command import status
from client.types import VlmError
from gateway.command import gateway
from gateway.settings import SettingsError
from python_backends.deployment import DeploymentError, load_deployment

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console(highlight=False)

DeploymentFile = Annotated[Path, typer.Option("--deployment", "-d", help="Deployment file (YAML).")]
OutputFolder = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Folder for the composed repository.", show_default="build/NAME"),
]
HttpPort = Annotated[int | None, typer.Option(min=1, max=65535, show_default="8000 or the next free")]
GrpcPort = Annotated[int | None, typer.Option(min=1, max=65535, show_default="8001 or the next free")]
MetricsPort = Annotated[int | None, typer.Option(min=1, max=65535, show_default="8002 or the next free")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tvlm {metadata.version('triton-vlm')}")
        raise typer.Exit


@app.callback()
def tvlm(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Serve vision-language models on NVIDIA Triton, every stage on its own."""


@app.command()
def build(deployment: DeploymentFile, output: OutputFolder = None) -> None:
    """Make the artifacts and compose the Triton model repository of a deployment.

    \b
    Examples:
      tvlm build --deployment deployments/demo-cpu.yaml
      tvlm build --deployment deployments/demo-cpu.yaml --output /srv/demo
      tritonserver --model-repository /srv/demo/model_repository
    """
    from client.serving.compose import compose  # noqa: PLC0415  (imports are most of a command's start)

    compose(deployment, output or default_output(deployment), out, force=True)


@app.command()
def serve(
    *,
    deployment: DeploymentFile,
    output: OutputFolder = None,
    http_port: HttpPort = None,
    grpc_port: GrpcPort = None,
    metrics_port: MetricsPort = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    grace_s: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds for running requests when told to stop.", show_default="serving.grace_s"),
    ] = None,
    with_gateway: Annotated[bool, typer.Option("--gateway", help="Start the OpenAI-compatible gateway, too.")] = False,
    gateway_port: Annotated[
        int | None, typer.Option(min=1, max=65535, show_default="8080 or the next free", help="Implies --gateway.")
    ] = None,
    gateway_config: Annotated[
        Path | None, typer.Option(help="Its settings, see deployments/gateway.yaml. Implies --gateway.")
    ] = None,
) -> None:
    """Serve a deployment until Ctrl-C or SIGTERM; composes it first when needed.

    A model that dies is loaded again. The first signal drains: no longer ready, nothing new is admitted, running
    requests finish; a second one ends at once.

    \b
    Examples:
      tvlm serve --deployment deployments/demo-cpu.yaml
      tvlm serve --deployment deployments/demo-cpu.yaml --host 127.0.0.1 --http-port 9000
      tvlm serve --deployment deployments/demo-cpu.yaml --gateway
      tvlm serve --deployment deployments/demo-cpu.yaml --grace-s 30
    """
    from client.serving.compose import open_server  # noqa: PLC0415

    end_on_signals()
    ports = choose_ports(host, http_port, grpc_port, metrics_port)  # before a build, which takes longer
    output = output or default_output(deployment)
    grace = load_deployment(deployment).serving.grace_s if grace_s is None else grace_s
    with contextlib.ExitStack() as running:
        server = running.enter_context(open_server(deployment, output, out, ports, host))
        shown = {**asdict(server.endpoints), "log": str(server.log)}
        if with_gateway or gateway_port or gateway_config:
            from client.serving.gateway import GatewayProcess  # noqa: PLC0415

            options: dict[str, Any] = {"config": gateway_config, "port": gateway_port, "grace_s": round(grace)}
            front = running.enter_context(GatewayProcess(output, server.endpoints.grpc, **options))
            shown |= {"gateway": front.url, "its log": str(front.log)}
        for name, place in shown.items():
            out.print(f"  {name:8} {place}", soft_wrap=True)
        try:
            out.print("Ready. Ctrl-C stops it.")
            server.run()
        except KeyboardInterrupt:
            out.print(f"Draining: running requests get {grace:g} s to finish. Ctrl-C again ends them.")
            server.drain(grace)


app.command()(gateway)
app.command()(status)


@app.command()
def demo(
    *,
    deployment: DeploymentFile = Path("deployments/demo-cpu.yaml"),
    output: OutputFolder = None,
    http_port: HttpPort = None,
    grpc_port: GrpcPort = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Serve a deployment, ask it five questions, print answers and times by stage, stop.

    \b
    Examples:
      tvlm demo
      tvlm demo --deployment deployments/demo-cpu.yaml
    """
    from client.demo import run_demo  # noqa: PLC0415
    from client.serving.compose import open_server  # noqa: PLC0415

    end_on_signals()
    ports = choose_ports("127.0.0.1", http_port, grpc_port, metrics_port)
    server = open_server(deployment, output or default_output(deployment), out, ports)
    out.print(f"Starting tritonserver; its log is {server.log}", soft_wrap=True)
    with server:
        run_demo(server.endpoints.grpc, out)


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    *,
    image: Annotated[
        list[Path] | None, typer.Option("--image", "-i", help="A picture; repeat for more, order is kept.")
    ] = None,
    url: Annotated[str, typer.Option(help="grpc://host:port or http://host:port.")] = "grpc://localhost:8001",
    stream: Annotated[bool, typer.Option("--stream", help="Print the answer as it comes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print answer, tokens and times as JSON.")] = False,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 for the likeliest answer.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the likeliest tokens of this share.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from so many likeliest tokens.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same sampled answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; repeat for more.")] = None,
    timeout_s: Annotated[float | None, typer.Option(help="Give up after so many seconds.")] = None,
) -> None:
    """Ask a running server.

    \b
    Examples:
      tvlm ask "What is the capital of France?"
      tvlm ask "What is in the picture?" --image cat.jpg
      tvlm ask "Which animal is in the second picture?" --image cat.jpg --image dog.png
      tvlm ask "Tell me a story." --stream --max-tokens 200 --url http://localhost:8000
    """
    from client.api import VlmClient  # noqa: PLC0415

    asked = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": stop or None,
    }
    options: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    with VlmClient(url) as vlm:
        if stream and not as_json:
            for piece in vlm.stream(question, image or (), timeout_s=timeout_s, **options):
                print(piece, end="", flush=True)
            print()
            return
        answer = vlm.generate(question, image or (), timeout_s=timeout_s, **options)
    print(json.dumps(asdict(answer)) if as_json else answer.text)


@app.command()
def bench(
    *,
    tool: Annotated[str, typer.Option(help="perf_analyzer or aiperf.")],
    url: Annotated[
        str, typer.Option(help="grpc://host:port of tritonserver, or http://host:port of the gateway.")
    ] = "grpc://localhost:8001",
    model: Annotated[str, typer.Option(help="The model's name there.")] = "vlm",
    pictures: Annotated[int, typer.Option(min=0, max=16, help="Pictures in every request.")] = 1,
    requests: Annotated[int, typer.Option(min=1, max=100_000, help="How many are sent.")] = 32,
    rate: Annotated[float, typer.Option(min=0.01, help="Requests a second, Poisson.")] = 1.0,
    folder: Annotated[Path, typer.Option(help="For the tool's input and results.")] = Path("perf/reports/tools"),
    perf_analyzer: Annotated[str, typer.Option(help="The perf_analyzer to run.")] = "perf_analyzer",
    aiperf: Annotated[str, typer.Option(help="The aiperf to run.")] = "aiperf",
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="tokenizer.json of what is served, for aiperf, which else downloads one."),
    ] = None,
) -> None:
    """Measure a running server with the tools that Triton's users know; writes their input files.

    \b
    Examples:
      tvlm bench --tool perf_analyzer --pictures 2 --rate 0.5
      tvlm bench --tool perf_analyzer --perf-analyzer /opt/bin/perf_analyzer --url http://localhost:8080
      tvlm bench --tool aiperf --url http://localhost:8080 --tokenizer build/demo-cpu/artifacts/tokenizer.json
    """
    from perf.tools.run import Plan, run_tool  # noqa: PLC0415

    binaries = {"perf_analyzer": perf_analyzer, "aiperf": aiperf}
    if tool not in binaries:
        raise VlmError("INVALID_ARGUMENT", f"tool: {tool!r} is not one of {', '.join(binaries)}")
    plan = Plan(url, model, pictures, requests, rate, folder, tokenizer)
    for line in run_tool(tool, binaries[tool], plan, lambda text: out.print(text, soft_wrap=True)).lines()[1:]:
        out.print(line, soft_wrap=True)


def default_output(deployment: Path) -> Path:
    """Where a deployment is composed when nothing else is said: build/NAME in the working directory."""
    return Path("build") / deployment.stem


def end_on_signals() -> None:
    """Let SIGTERM and a closed terminal end a command as Ctrl-C does, so that it stops its server.

    Ctrl-C too: a script's background job starts with it ignored.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def main() -> None:
    """Run `tvlm`; what goes wrong is one line on standard error and exit status 1."""
    try:
        app(prog_name="tvlm")
    except (ServeError, VlmError, DeploymentError, SettingsError) as error:
        print(f"tvlm: error: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"tvlm: error: {where}{error.strerror or error}; is the path right, and writable?", file=sys.stderr)
        sys.exit(1)
