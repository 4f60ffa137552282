"""The decode pipeline as a model of Triton's DALI backend, for servers that have it (tritonserver -py3, not -trtllm-).

    python -m build_engines.decode_dali --deployment deployments/llava-next-7b-1xh100.yaml --output models

One squashed square a picture. That backend answers a whole batch with an error when one file of it is bad, and knows
neither profiles nor transparency; this product's own stage (python_backends/media/dali.py) does.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tritonclient.grpc import model_config_pb2

from build_engines.compose import write_config
from build_engines.facts import read_facts
from python_backends.deployment import load_deployment
from python_backends.media.dali_pipeline import FILES, DaliSettings, build_pipeline

MODEL = "image_decode_dali"


def write_dali_model(settings: DaliSettings, side: int, repository: Path) -> Path:
    """Write the model into a repository: `image` UINT8 [bytes] to `tiles` UINT8 [side, side, 3].

    Raises:
        MissingRuntime: DALI is not installed.
        RuntimeError: a pipeline for GPUs is wanted where there is none; DALI needs one even to write it down.
    """
    folder = repository / MODEL
    (folder / "1").mkdir(parents=True)
    build_pipeline(settings, side).serialize(filename=str(folder / "1" / "model.dali"))
    config = model_config_pb2.ModelConfig(name=MODEL, backend="dali", max_batch_size=settings.batch_size)
    # files of different lengths in one batch
    config.input.add(name=FILES, data_type=model_config_pb2.TYPE_UINT8, dims=[-1], allow_ragged_batch=True)
    config.output.add(name="tiles", data_type=model_config_pb2.TYPE_UINT8, dims=[side, side, 3])
    config.dynamic_batching.SetInParent()
    group = config.instance_group.add(count=1)
    group.kind = group.KIND_GPU if settings.on_gpu else group.KIND_CPU
    config.parameters["num_threads"].string_value = str(settings.threads)
    write_config(config, folder)
    return folder


def main() -> None:
    """Run from a shell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deployment", type=Path, required=True, help="deployment file")
    parser.add_argument("--output", type=Path, required=True, help="model repository to write into")
    options = parser.parse_args()
    deployment = load_deployment(options.deployment)
    pool = deployment.pools.preprocess
    settings = DaliSettings(pool.batch_size, pool.threads or 4, pool.device == "gpu", pool.hw_decoder_load)
    print(write_dali_model(settings, read_facts(deployment.checkpoint).image_size, options.output))


if __name__ == "__main__":
    main()
