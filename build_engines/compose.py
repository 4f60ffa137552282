"""The Triton model repository: committed config.pbtxt files, edited as protobuf messages, and their model.py files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from build_engines.errors import BuildError
from build_engines.warmup import add_warmup
from python_backends.checkpoint import Checkpoint
from python_backends.deployment import Deployment
from python_backends.pools import PreprocessPool, TextPool, VisionPool

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "model_repository"
ENSEMBLES = ROOT / "ensemble"
_HEADER = "# Written by `tvlm build`. Change the deployment file and build again.\n"
_ENCODE = "encode"  # the rate limiter's resource, one on each GPU


def compose_repository(deployment: Deployment, checkpoint: Checkpoint, output: Path) -> None:
    """Write a whole model repository into the new folder `output` (BuildError)."""
    pools = deployment.pools
    _write_model(MODELS / "vlm", output)
    _write_model(ENSEMBLES / "image_embedding", output)
    decode = _write_model(MODELS / "image_decode", output, edit=partial(_put_on_devices, pools.preprocess))
    encode = _write_model(MODELS / "vision_encoder", output, edit=partial(_edit_encoder, pools.vision, pools.text))
    for replica in range(pools.text.replicas):
        _write_model(MODELS / "llm_decoder", output, edit=partial(_edit_decoder, pools.text, replica))
    for model, pool in ((decode, pools.preprocess), (encode, pools.vision)):
        if pool.device == "gpu":
            add_warmup(model, checkpoint)


def read_config(path: Path) -> Any:
    """A config.pbtxt as a ModelConfig message (BuildError when it is not one)."""
    try:
        return text_format.Parse(path.read_text(), ModelConfig())
    except (OSError, text_format.ParseError) as error:
        raise BuildError(f"{path}: {error}") from error


def write_config(config: Any, folder: Path) -> None:
    """Write a ModelConfig message as the config.pbtxt of a model's folder."""
    (folder / "config.pbtxt").write_text(_HEADER + text_format.MessageToString(config))


def _put_on_devices(pool: PreprocessPool | VisionPool, config: Any) -> None:
    """Instances and batches of a stage."""
    config.max_batch_size = pool.batch_size
    if isinstance(pool, PreprocessPool):  # the vision encoder has a window of its own, which adapts to load
        config.dynamic_batching.max_queue_delay_microseconds = round(pool.queue_delay_ms * 1000)
    group = config.instance_group[0]
    group.count = pool.instances
    if pool.device == "gpu":
        group.kind = group.KIND_GPU
        group.gpus[:] = pool.gpus


def _edit_encoder(pool: VisionPool, text: TextPool, config: Any) -> None:
    _put_on_devices(pool, config)
    if pool.device == "cpu":
        return
    _leave_tensors_on_gpus(config)
    if set(pool.gpus) & set(text.gpus):
        # beside a token loop one batch is encoded at a time, however many instances there are
        config.instance_group[0].rate_limiter.resources.add(name=_ENCODE, count=1)


def _edit_decoder(pool: TextPool, replica: int, config: Any) -> None:
    config.name = f"llm_decoder_{replica}"
    if pool.device == "gpu":
        group = config.instance_group[0]
        group.kind = group.KIND_MODEL  # one engine, on as many GPUs as it is told: Triton places nothing
        config.parameters["gpus"].string_value = ",".join(map(str, pool.replica_gpus(replica)))
        _leave_tensors_on_gpus(config)


def _leave_tensors_on_gpus(config: Any) -> None:
    """By default the Python backend copies inputs to the CPU before the model sees them."""
    config.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value = "no"


def _write_model(source: Path, repository: Path, *, edit: Callable[[Any], None] = lambda config: None) -> Path:
    """Copy a model as edited; gives its folder."""
    config = read_config(source / "config.pbtxt")
    edit(config)
    target = repository / config.name
    version = target / "1"
    if config.platform == "ensemble":
        version.mkdir(parents=True)  # Triton wants a version folder even where there is nothing to put into it
    else:
        shutil.copytree(source / "1", version, ignore=shutil.ignore_patterns("__pycache__"))
    write_config(config, target)
    return Path(target)
