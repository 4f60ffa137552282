"""`tvlm bench --tool`: writes the tool's input, runs it, reads its figures back.

The figures go to TOOL.txt in the folder; `perf.bench` shows what lies in the folder `tools` of its report.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from client.types import VlmError
from perf.load.targets import check_url
from perf.statistics import highest_quantile, quantile
from perf.tools import inputs
from perf.workloads import Request, make_workload


@dataclass(frozen=True)
class Plan:
    """What is asked, and where. `url` is grpc://host:port (KServe) or http://host:port (OpenAI)."""

    url: str
    model: str
    pictures: int  # in every request
    requests: int
    rate: float  # requests a second, Poisson
    folder: Path  # for the input, and what the tool writes
    tokenizer: Path | None = None  # tokenizer.json of what is served, for AIPerf


@dataclass(frozen=True)
class ToolReport:
    """What the tool measured; milliseconds."""

    command: str
    requests: int  # that were answered
    failed: int
    ttft_p50_ms: float
    ttft_tail_ms: float
    tail: float
    gap_p50_ms: float

    def lines(self) -> list[str]:
        """For the terminal and for the HTML report."""
        tail = f", P{100 * self.tail:.0f} {self.ttft_tail_ms:.1f} ms" if self.tail > 0.5 else ""  # few bear no tail
        return [
            f"$ {self.command}",
            f"{self.requests} requests ({self.failed} failed), TTFT P50 {self.ttft_p50_ms:.1f} ms{tail}, "
            f"time between responses P50 {self.gap_p50_ms:.1f} ms",
        ]


def run_tool(tool: str, binary: str, plan: Plan, say: Callable[[str], None]) -> ToolReport:
    """Run perf_analyzer or aiperf (VlmError: it is not there, or fails)."""
    try:
        check_url(plan.url)
    except ValueError as error:
        raise VlmError("INVALID_ARGUMENT", str(error)) from None
    plan.folder.mkdir(parents=True, exist_ok=True)
    kind = "single-image" if plan.pictures else "single-text"
    drawn = make_workload(kind, rate=1.0, seconds=4.0 * plan.requests + 20, seed=1).requests[: plan.requests]
    requests = [_with_pictures(request, plan.pictures) for request in drawn]
    prepare = perf_analyzer if tool == "perf_analyzer" else aiperf
    command, result, read = prepare(binary, plan, requests)
    line = shlex.join(command)
    say(f"$ {line}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise VlmError("NOT_FOUND", f"{binary}: {error.strerror}; is it installed, and on PATH?") from None
    (plan.folder / f"{tool}.log").write_text(done.stdout + done.stderr)
    if done.returncode or not result.exists():
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise VlmError("UNKNOWN", f"{tool} failed: {last[0]} (log: {plan.folder / f'{tool}.log'})")
    # perf_analyzer writes the bytes of outputs as they are, lengths before texts too: no UTF-8 then
    report = read(line, json.loads(result.read_text(errors="replace")))
    (plan.folder / f"{tool}.txt").write_text("\n".join(report.lines()) + "\n")
    return report


_Reader = Callable[[str, Any], ToolReport]


def perf_analyzer(binary: str, plan: Plan, requests: Sequence[Request]) -> tuple[list[str], Path, _Reader]:
    """Command, result file, and how to read it."""
    data, result = plan.folder / "perf_analyzer-input.json", plan.folder / "perf_analyzer.json"
    result.unlink(missing_ok=True)
    address = urlsplit(plan.url)
    command = [binary, "-m", plan.model, "--async", "--input-data", str(data)]
    if address.scheme == "grpc":
        inputs.write_kserve(data, requests)
        command += ["--streaming", "-i", "grpc", "-u", address.netloc]
    else:  # perf_analyzer 2.60 refuses --streaming here; the bodies say "stream": true
        inputs.write_openai(data, requests, plan.model)
        command += ["--service-kind", "openai", "--endpoint", "v1/chat/completions", "-u", address.netloc]
    # its end has a default of its own, 1: without it any other rate would be a range
    command += ["--request-rate-range", f"{plan.rate:g}:{plan.rate:g}", "--request-distribution", "poisson"]
    command += ["--request-count", str(plan.requests), "--profile-export-file", str(result)]
    return command, result, read_profile_export


def aiperf(binary: str, plan: Plan, requests: Sequence[Request]) -> tuple[list[str], Path, _Reader]:
    """AIPerf speaks HTTP only, so `plan.url` is the gateway's (VlmError: it is not)."""
    if urlsplit(plan.url).scheme == "grpc":
        raise VlmError("INVALID_ARGUMENT", f"url: aiperf speaks OpenAI's HTTP only, got {plan.url}")
    data = plan.folder / "aiperf-input.jsonl"
    inputs.write_aiperf(data, requests)
    command = [binary, "profile", "-m", plan.model, "-u", plan.url, "--endpoint-type", "chat", "--streaming"]
    command += ["--input-file", str(data), "--custom-dataset-type", "single_turn"]
    command += ["--request-rate", f"{plan.rate:g}", "--request-count", str(plan.requests)]
    # it wants a tokenizer although the server counts; without one it asks the Hugging Face hub for the model's name
    tokenizer = _tokenizer_folder(plan.tokenizer, plan.folder / "tokenizer") if plan.tokenizer else "builtin"
    command += ["--tokenizer", str(tokenizer), "--use-server-token-count"]
    command += ["--extra-inputs", "ignore_eos:true", "--output-artifact-dir", str(plan.folder), "--ui", "none"]
    return command, plan.folder / "profile_export_aiperf.json", read_aiperf


def _tokenizer_folder(file: Path, folder: Path) -> Path:
    """A folder that transformers reads without the internet (OSError: `file` can't be read)."""
    folder.mkdir(exist_ok=True)
    shutil.copyfile(file, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}\n')
    return folder


def read_profile_export(command: str, export: Any) -> ToolReport:
    """perf_analyzer's --profile-export-file: nanosecond stamps of every request and response."""
    requests = export["experiments"][0]["requests"]
    stamps = [(request["timestamp"], request["response_timestamps"]) for request in requests]
    ttft = np.array([(first[0] - begin) / 1e6 for begin, first in stamps if first])
    gaps = np.concatenate([np.diff(responses) / 1e6 for _, responses in stamps]) if stamps else np.zeros(0)
    tail = highest_quantile(len(ttft))
    failed, gap_ms = len(stamps) - len(ttft), quantile(gaps[gaps > 0], 0.5)
    return ToolReport(command, len(ttft), failed, quantile(ttft, 0.5), quantile(ttft, tail), tail, gap_ms)


def read_aiperf(command: str, export: Any) -> ToolReport:
    """AIPerf's profile_export_aiperf.json: a summary for each metric."""
    ttft, gaps = export["time_to_first_token"], export.get("inter_token_latency", {})
    count = int(export["request_count"]["avg"])
    tail = highest_quantile(count)
    failed = sum(problem["count"] for problem in export.get("error_summary", ()))
    tail_ms, gap_ms = ttft[f"p{100 * tail:.0f}"], gaps.get("p50", float("nan"))
    return ToolReport(command, count, failed, ttft["p50"], tail_ms, tail, gap_ms)


def _with_pictures(request: Request, count: int) -> Request:
    """As many pictures as wanted; each is new."""
    pictures = tuple(
        type(picture)(picture.seed + index, picture.width, picture.height)
        for picture in request.pictures
        for index in range(count)
    )
    return Request(request.number, request.at_s, request.modality, request.prompt, pictures, request.answer_tokens)
