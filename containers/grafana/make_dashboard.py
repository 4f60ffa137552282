"""Writes triton-vlm.json, the dashboard: python containers/grafana/make_dashboard.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# (title, unit, queries as (expression, legend))
PANELS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("Requests a second, by outcome", "reqps",
     [("sum by (modality, outcome) (rate(tvlm_requests_total[1m]))", "{{modality}} {{outcome}}")]),
    ("Refused a second, by reason", "reqps",
     [("sum by (reason) (rate(tvlm_refusals_total[1m]))", "{{reason}}")]),
    ("Time to first token, P50 and P99", "s",
     [(f"histogram_quantile({q}, sum by (le, modality) (rate(tvlm_time_to_first_token_seconds_bucket[1m])))",
       f"{{{{modality}}}} {name}") for q, name in ((0.5, "P50"), (0.99, "P99"))]),
    ("Longest gap between tokens, P99", "s",
     [("histogram_quantile(0.99, sum by (le, modality) (rate(tvlm_longest_token_gap_seconds_bucket[1m])))",
       "{{modality}}")]),
    ("Where first tokens wait, mean", "s",
     [(f"sum(rate(tvlm_{stage}_seconds_sum[1m])) / sum(rate(tvlm_{stage}_seconds_count[1m]))", stage)
      for stage in ("queue", "decode", "encode", "prefill")]),
    ("Tokens a second", "short",
     [("rate(tvlm_output_tokens_total[1m])", "out"),
      ("sum by (kind) (rate(tvlm_input_tokens_total[1m]))", "in, {{kind}}")]),
    ("Waiting and running requests", "short",
     [("tvlm_waiting_requests", "waiting {{modality}}"), ("tvlm_running_requests", "running {{modality}}")]),
    ("Token budgets", "short",
     [("tvlm_encode_tokens", "in encode"), ("tvlm_encode_budget_tokens", "encode budget"),
      ("tvlm_prefill_tokens", "in prefill, {{replica}}")]),
    ("KV cache in use", "percentunit", [("tvlm_kv_cache_usage_ratio", "replica {{replica}}")]),
    ("TensorRT-LLM: last step, and what waits in it", "short",
     [("tvlm_engine_step_seconds", "step (s), replica {{replica}}"),
      ("tvlm_engine_waiting_sequences", "waiting, replica {{replica}}")]),
    ("Cache hits", "percentunit",
     [("rate(tvlm_encoder_cache_hits_total[1m]) / rate(tvlm_encoder_cache_queries_total[1m])", "images"),
      ("rate(tvlm_prefix_cache_hits_total[1m]) / rate(tvlm_prefix_cache_queries_total[1m])",
       "prompt tokens, {{replica}}")]),
    ("Pages of visual tokens", "short", [("tvlm_embedding_pages", "{{state}}")]),
    ("Workers replaced, work done again", "short",
     [("sum by (stage) (increase(tvlm_worker_restarts_total[5m]))", "replaced {{stage}}"),
      ("sum by (stage) (increase(tvlm_retries_total[5m]))", "again {{stage}}")]),
    ("Batch sizes of the stages", "short",
     [("rate(nv_inference_count{model=~\"image_decode|vision_encoder\"}[1m]) / "
       "rate(nv_inference_exec_count{model=~\"image_decode|vision_encoder\"}[1m])", "{{model}}")]),
    ("GPU use", "percentunit", [("nv_gpu_utilization", "{{gpu_uuid}}")]),
    ("GPU memory in use", "bytes", [("nv_gpu_memory_used_bytes", "{{gpu_uuid}}")]),
]  # fmt: skip
SOURCE = {"type": "prometheus", "uid": "prometheus"}
WIDTH, HEIGHT, COLUMNS = 8, 8, 3


def panel(number: int, title: str, unit: str, queries: list[tuple[str, str]]) -> dict[str, Any]:
    """A chart over time."""
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": {"x": number % COLUMNS * WIDTH, "y": number // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for i, (expression, legend) in enumerate(queries)
        ],
    }


def dashboard() -> dict[str, Any]:
    """The whole of it."""
    return {
        "uid": "triton-vlm",
        "title": "triton-vlm",
        "schemaVersion": 41,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "panels": [panel(number, *values) for number, values in enumerate(PANELS)],
    }


if __name__ == "__main__":
    path = Path(__file__).with_name("triton-vlm.json")
    path.write_text(json.dumps(dashboard(), indent=1) + "\n")
