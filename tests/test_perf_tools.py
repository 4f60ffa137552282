"""Input files of the load tools, and what is read back from them."""

import base64
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from client.types import VlmError
from perf.fake_engine import replace_engine
from perf.knee import knee, with_max_running
from perf.load.openai_target import chat_body
from perf.tools import inputs
from perf.tools.run import Plan, aiperf, read_aiperf, read_profile_export, run_tool
from perf.workloads import make_workload
from perf.workloads.payload import picture_bytes
from tests.fakes.tokenizer import byte_tokenizer

REQUESTS = make_workload("single-image", rate=2, seconds=4, seed=1).requests
EXPORT = {
    "experiments": [
        {
            "requests": [
                {"timestamp": 0, "response_timestamps": [5_000_000, 7_000_000, 9_000_000]},
                {"timestamp": 1_000_000, "response_timestamps": [9_000_000, 12_000_000]},
                {"timestamp": 2_000_000, "response_timestamps": []},
            ]
        }
    ]
}

FAKE_TOOL = """#!/usr/bin/env python3
import sys
times = b'"timestamp": 0, "response_timestamps": [3000000, 5000000]'
requests = b'{' + times + b', "response_outputs": [{"text_output": "\\xff"}]}'
with open(sys.argv[sys.argv.index("--profile-export-file") + 1], "wb") as file:
    file.write(b'{"experiments": [{"requests": [' + requests + b']}]}')
"""


def test_perf_analyzer_gets_bytes_with_their_lengths() -> None:
    row = inputs.kserve_rows(REQUESTS)[0]
    raw = base64.b64decode(row["image"]["content"]["b64"])
    file = picture_bytes(REQUESTS[0].pictures[0])
    assert raw == len(file).to_bytes(4, "little") + file
    assert row["image"]["shape"] == [1]
    assert json.loads(row["sampling_parameters"]["content"][0])["max_tokens"] == REQUESTS[0].answer_tokens


def test_chat_bodies_carry_data_uris_before_the_text() -> None:
    content = chat_body(REQUESTS[0], "vlm")["messages"][0]["content"]
    assert [part["type"] for part in content] == ["image_url", "text"]
    assert content[0]["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert content[1]["text"] == REQUESTS[0].prompt


def test_aiperf_gets_a_line_a_request(tmp_path: Path) -> None:
    inputs.write_aiperf(tmp_path / "in.jsonl", REQUESTS)
    lines = [json.loads(line) for line in (tmp_path / "in.jsonl").read_text().splitlines()]
    assert [line["texts"] for line in lines] == [[request.prompt] for request in REQUESTS]
    assert all(len(line["images"]) == 1 for line in lines)


def test_figures_are_read_from_stamps() -> None:
    report = read_profile_export("cmd", EXPORT)
    assert (report.requests, report.failed, report.ttft_p50_ms, report.gap_p50_ms) == (2, 1, 5.0, 2.0)
    assert report.tail == 0.5  # two requests bear no more


def test_figures_are_read_from_aiperf() -> None:
    summary = {"p50": 10.0, "p90": 20.0, "p95": 25.0, "p99": 30.0}
    export = {"time_to_first_token": summary, "inter_token_latency": summary, "request_count": {"avg": 150.0}}
    report = read_aiperf("cmd", export | {"error_summary": [{"error_details": {}, "count": 3}]})
    assert (report.requests, report.failed, report.tail, report.ttft_tail_ms) == (150, 3, 0.9, 20.0)
    assert read_aiperf("cmd", export).failed == 0


def a_plan(folder: Path, url: str) -> Plan:
    return Plan(url, "vlm", 1, 3, 2.0, folder)


def test_a_tool_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(VlmError, match="no-such-tool: No such file"):
        run_tool("perf_analyzer", "no-such-tool", a_plan(tmp_path, "grpc://localhost:1"), lambda _: None)


def test_aiperf_needs_the_gateway(tmp_path: Path) -> None:
    with pytest.raises(VlmError, match="OpenAI's HTTP only"):
        run_tool("aiperf", "aiperf", a_plan(tmp_path, "grpc://localhost:1"), lambda _: None)


def test_a_tool_that_fails_is_quoted(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho could not connect >&2\nexit 3\n")
    tool.chmod(0o755)
    with pytest.raises(VlmError, match="failed: could not connect"):
        run_tool("perf_analyzer", str(tool), a_plan(tmp_path / "out", "grpc://localhost:1"), lambda _: None)


def test_any_rate_is_asked_for_and_bytes_that_are_no_text_are_read(tmp_path: Path) -> None:
    """The tool's end of the rates is 1 unless it is told; lengths of texts lie in its file as they are."""
    tool = tmp_path / "tool"
    tool.write_text(FAKE_TOOL)
    tool.chmod(0o755)
    plan = replace(a_plan(tmp_path / "out", "grpc://localhost:1"), rate=0.7)
    report = run_tool("perf_analyzer", str(tool), plan, lambda _: None)
    assert "--request-rate-range 0.7:0.7 " in report.command
    assert report.ttft_p50_ms == 3


def test_knee_is_the_least_concurrency_with_almost_all() -> None:
    assert knee({1: 60.0, 8: 250.0, 16: 480.0, 32: 500.0, 64: 495.0}) == 16
    assert knee({1: 60.0, 8: 250.0, 16: 480.0}) is None  # it rises to the last


def test_knee_is_written_beside_the_comments() -> None:
    text = "pools:\n  text:\n    max_running: 32  # why\n"
    assert with_max_running(text, 12) == "pools:\n  text:\n    max_running: 12  # why\n"
    with pytest.raises(ValueError, match="no line"):
        with_max_running("pools: {}\n", 12)


def test_aiperf_gets_the_served_tokenizer_as_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    byte_tokenizer().save(str(file))
    plan = Plan("http://localhost:1", "vlm", 1, 3, 2.0, tmp_path, file)
    command, _, _ = aiperf("aiperf", plan, REQUESTS)
    folder = Path(command[command.index("--tokenizer") + 1])
    assert (folder / "tokenizer.json").read_text() == file.read_text()
    assert json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_the_decoder_runs_the_engine_that_a_measurement_puts_in(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    shutil.copy(Path(__file__).parents[1] / "model_repository" / "llm_decoder" / "1" / "model.py", model)
    replace_engine(model, "perf.fake_engine:FakeEngine")
    assert '"perf.fake_engine:FakeEngine",' in model.read_text()
    with pytest.raises(ValueError, match="does not name"):
        replace_engine(model, "perf.fake_engine:FakeEngine")
