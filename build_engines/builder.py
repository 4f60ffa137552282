"""Checkpoint and deployment file in, composed repository out: the whole of it or nothing."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from build_engines.adapter_files import ADAPTER_FILES
from build_engines.chat_template import read_chat_template
from build_engines.errors import BuildError
from build_engines.facts import (
    CHAT_TEMPLATE,
    CONFIG,
    VISION_MODEL,
    has_adapter,
    is_huggingface,
    read_facts,
    source_files,
)
from build_engines.fingerprint import Record, current_inputs, files_of, is_complete, read_record
from build_engines.gguf_wheel import locate_gguf
from build_engines.isolated import run_isolated
from build_engines.llm_trtllm import write_model_yaml
from build_engines.tensorrt_plan import TIMING_CACHE, as_json
from build_engines.vision_plan import precision_of, profiles_of
from python_backends.checkpoint import CHECKPOINT_FILE, Checkpoint
from python_backends.deployment import BUILT_FILE, Deployment, load_deployment

Progress = Callable[[str], None]  # what is being worked on now


@dataclass(frozen=True)
class BuildResult:
    """A finished build."""

    output: Path
    seconds: float
    reused: tuple[str, ...]  # artifacts taken over from the build before


@dataclass(frozen=True)
class _Step:
    """An expensive artifact, made by `target` (source, output, *options); good while its inputs are the same."""

    label: str
    artifact: str
    target: str
    source: Path
    inputs: frozenset[str]
    options: tuple[str, ...] = ()


def is_stale(deployment: Path, output: Path) -> bool:
    """Whether `build` of this deployment file would have anything to do (its errors, but quick)."""
    record = read_record(output)
    inputs = current_inputs(load_deployment(deployment))
    return record is None or record.inputs != inputs or not is_complete(record, output)


def build(deployment: Path, output: Path, progress: Progress | None = None) -> BuildResult:
    """Make artifacts and Triton model repository in `output`, replacing an earlier build only when all is done.

    Raises:
        DeploymentError: the deployment file is at fault.
        BuildError: the checkpoint or the installation doesn't allow it, or `output` is a folder that no build made.
    """
    begin = time.monotonic()
    output = Path(os.path.abspath(output))
    values = load_deployment(deployment)
    facts = _check(values, output)
    with _fresh_sibling(output) as sibling:
        reused = _fill(values, facts, output, sibling, progress or (lambda _: None))
        _swap(sibling, output)
    return BuildResult(output, time.monotonic() - begin, reused)


def _check(deployment: Deployment, output: Path) -> Checkpoint:
    if output.exists() and (not output.is_dir() or (any(output.iterdir()) and read_record(output) is None)):
        raise BuildError(f"{output} exists and is not a build of tvlm: choose another output, or remove it")
    facts = read_facts(deployment.checkpoint, deployment.profile)
    context = deployment.limits.context_tokens
    if context > facts.context_tokens:
        raise BuildError(
            f"limits.context_tokens = {context} is over the {facts.context_tokens} of checkpoint {facts.name}: lower it"
        )
    return facts.within(deployment.limits.image_tokens)


def _fill(
    deployment: Deployment, facts: Checkpoint, previous: Path, target: Path, progress: Progress
) -> tuple[str, ...]:
    """Write everything into `target`; returns what was taken over from `previous`."""
    from build_engines.compose import compose_repository  # noqa: PLC0415  (imports gRPC: too slow for is_stale)

    inputs = current_inputs(deployment)
    artifacts = target / "artifacts"
    artifacts.mkdir()
    (artifacts / BUILT_FILE).write_text(deployment.model_dump_json(indent=1))
    (artifacts / CHECKPOINT_FILE).write_text(facts.model_dump_json(indent=1))
    (artifacts / CHAT_TEMPLATE).write_text(read_chat_template(deployment.checkpoint))
    compose_repository(deployment, facts, target / "model_repository")

    steps, reused = _steps(deployment, facts, previous.parent), []
    for build in (previous, unfinished_of(previous)):
        for step in _still_good([step for step in steps if step not in reused], inputs, build):
            _take_over(build / "artifacts" / step.artifact, artifacts / step.artifact)
            reused.append(step)
    _run([step for step in steps if step not in reused], artifacts, Record(inputs, {}), progress)
    if deployment.profile == "gpu":
        write_model_yaml(deployment, artifacts)
    elif (width := json.loads((artifacts / "llm" / CONFIG).read_text())["hidden_size"]) != facts.hidden_size:
        raise BuildError(f"the LLM's embeddings are {width} wide, visual tokens {facts.hidden_size}: wrong checkpoint")
    Record(inputs, files_of(target)).write(artifacts)
    return tuple(step.artifact for step in reused)


def _run(steps: list[_Step], artifacts: Path, record: Record, progress: Progress) -> None:
    """All steps side by side, each in a process of its own; `record` is kept of those that are done."""
    failures: list[BaseException] = []
    with ThreadPoolExecutor() as pool:
        running = {
            pool.submit(run_isolated, step.target, step.source, artifacts / step.artifact, *step.options): step
            for step in steps
        }
        while running:
            progress(", ".join(step.label for step in running.values()))
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                step, failure = running.pop(future), future.exception()
                if failure is None:
                    record.add(artifacts / step.artifact, artifacts)
                else:
                    failures.append(failure)
    if failures:
        raise failures[0]


def _steps(deployment: Deployment, facts: Checkpoint, folder: Path) -> list[_Step]:
    """`folder` is where builds lie side by side."""
    if deployment.profile == "gpu":
        return _gpu_steps(deployment, facts, folder)
    if is_huggingface(deployment.checkpoint):
        return _export_steps(deployment)
    weights = deployment.pools.text.weights
    if weights != "auto":
        raise BuildError(
            f"pools.text.weights = {weights} is for Hugging Face checkpoints: a GGUF file's are as they are"
        )
    gguf = locate_gguf()
    llm = frozenset({"llm", "code", "libraries"})
    adapted = llm | {f"checkpoint/{name}" for name in ADAPTER_FILES}
    options = (str(deployment.checkpoint),) if has_adapter(deployment.checkpoint) else ()
    vision = frozenset({f"checkpoint/{CONFIG}", f"checkpoint/{VISION_MODEL}", "code", "libraries"})
    return [
        _Step("LLM", "llm", "build_engines.llm_openvino:build_llm", gguf, adapted, options),
        _Step("tokenizer", "tokenizer.json", "build_engines.tokenizer:build_tokenizer", gguf, llm),
        _Step("vision tower", "vision", "build_engines.vision:build_vision", deployment.checkpoint, vision),
    ]


def _gpu_steps(deployment: Deployment, facts: Checkpoint, folder: Path) -> list[_Step]:
    """Those of a Hugging Face folder for TensorRT and TensorRT-LLM; what TensorRT has timed is kept between builds."""
    checkpoint, vision = deployment.checkpoint, deployment.pools.vision
    if not is_huggingface(checkpoint):
        raise BuildError(f"checkpoint {checkpoint} is no Hugging Face folder with .safetensors: profile gpu needs one")
    files = frozenset({"code", "libraries", *(f"checkpoint/{path.name}" for path in source_files(checkpoint))})
    package = "build_engines.gpu_steps"
    tokenizer = "build_engines.huggingface.tokenizer:build_tokenizer"
    options = (precision_of(facts, vision), as_json(profiles_of(facts, vision)), str(folder / TIMING_CACHE))
    return [
        _Step("LLM", "llm", f"{package}:link_checkpoint", checkpoint, files),
        _Step("tokenizer", "tokenizer.json", tokenizer, checkpoint, files),
        _Step("vision tower", "vision", f"{package}:build_vision_plan", checkpoint, files | {"plan"}, options),
    ]


def _export_steps(deployment: Deployment) -> list[_Step]:
    """Those of a Hugging Face folder. Any of its files may count."""
    checkpoint, weights = deployment.checkpoint, deployment.pools.text.weights
    files = frozenset({"code", "libraries", *(f"checkpoint/{path.name}" for path in source_files(checkpoint))})
    package = "build_engines.huggingface"
    return [
        _Step(
            "LLM", "llm", f"{package}.text:build_llm", checkpoint, files | {"weights"},
            ("int8" if weights == "auto" else weights,),
        ),
        _Step("tokenizer", "tokenizer.json", f"{package}.tokenizer:build_tokenizer", checkpoint, files),
        _Step("vision tower", "vision", f"{package}.vision:build_vision", checkpoint, files),
    ]  # fmt: skip


def _still_good(steps: list[_Step], inputs: dict[str, str], previous: Path) -> list[_Step]:
    record = read_record(previous)
    if record is None or not is_complete(record, previous):
        return []
    return [
        step
        for step in steps
        if all(record.inputs.get(name) == inputs[name] for name in step.inputs)
        and any(Path(name).parts[:2] == ("artifacts", step.artifact) for name in record.files)
    ]


def _take_over(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=_link)
    else:
        _link(source, target)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)  # no build changes a file in place
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def unfinished_of(output: Path) -> Path:
    """Where a build that failed or was killed leaves the artifacts that were done, for the next one."""
    return output.with_name(f".{output.name}.unfinished")


@contextmanager
def _fresh_sibling(output: Path) -> Iterator[Path]:
    """An empty folder beside `output`; one build at a time has it. What a failed build has finished is kept."""
    output.parent.mkdir(parents=True, exist_ok=True)
    sibling = output.with_name(f".{output.name}.building")
    lock = os.open(output.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _keep_finished(sibling, output)  # of a build that was killed
        sibling.mkdir()
        yield sibling
        shutil.rmtree(unfinished_of(output), ignore_errors=True)
    finally:
        _keep_finished(sibling, output)
        os.close(lock)


def _keep_finished(sibling: Path, output: Path) -> None:
    if read_record(sibling) is not None:
        shutil.rmtree(unfinished_of(output), ignore_errors=True)
        sibling.rename(unfinished_of(output))
    shutil.rmtree(sibling, ignore_errors=True)


def _swap(new: Path, output: Path) -> None:
    """Put `new` in the place of `output`, and drop what was there."""
    old = output.with_name(f".{output.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        output.rename(old)
    try:
        new.rename(output)
    except OSError:
        old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)
