"""The Triton model repository: committed config.pbtxt files, edited as protobuf messages, and their model.py files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from build_engines.errors import BuildError
from python_backends.deployment import Deployment, PreprocessPool, VisionPool

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "model_repository"
ENSEMBLES = ROOT / "ensemble"
_HEADER = "# Written by `tvlm build`. Change the deployment file and build again.\n"


def compose_repository(deployment: Deployment, output: Path) -> None:
    """Write a whole model repository into the new folder `output` (BuildError)."""
    pools = deployment.pools
    _write_model(MODELS / "vlm", output)
    _write_model(ENSEMBLES / "image_embedding", output)
    _write_model(MODELS / "image_decode", output, pool=pools.preprocess)
    _write_model(MODELS / "vision_encoder", output, pool=pools.vision)
    for replica in range(pools.text.replicas):
        _write_model(MODELS / "llm_decoder", output, name=f"llm_decoder_{replica}")


def read_config(path: Path) -> Any:
    """A config.pbtxt as a ModelConfig message (BuildError when it is not one)."""
    try:
        return text_format.Parse(path.read_text(), ModelConfig())
    except (OSError, text_format.ParseError) as error:
        raise BuildError(f"{path}: {error}") from error


def _write_model(
    source: Path, repository: Path, *, name: str | None = None, pool: PreprocessPool | VisionPool | None = None
) -> None:
    config = read_config(source / "config.pbtxt")
    if name is not None:
        config.name = name
    if pool is not None:
        config.max_batch_size = pool.batch_size
        if isinstance(pool, PreprocessPool):  # the vision encoder has a window of its own, which adapts to load
            config.dynamic_batching.max_queue_delay_microseconds = round(pool.queue_delay_ms * 1000)
        config.instance_group[0].count = pool.instances
    target = repository / config.name
    version = target / "1"
    if config.platform == "ensemble":
        version.mkdir(parents=True)  # Triton wants a version folder even where there is nothing to put into it
    else:
        shutil.copytree(source / "1", version, ignore=shutil.ignore_patterns("__pycache__"))
    (target / "config.pbtxt").write_text(_HEADER + text_format.MessageToString(config))
