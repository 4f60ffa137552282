"""The TensorRT-LLM adapter against a fake LLM API: streams, cancellation, errors, figures, both ways in for images."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build_engines.llm_trtllm import write_model_yaml
from python_backends.checkpoint import CHECKPOINT_FILE, Checkpoint
from python_backends.deployment import Deployment, parse_deployment
from python_backends.engines.llm_trtllm import LlmEngine
from python_backends.engines.mrope import mrope_positions
from python_backends.engines.protocol import (
    NO_VISUALS,
    VISUAL_TOKEN,
    EngineLoad,
    Finish,
    Submission,
    VisualRows,
    submission_tensors,
)
from python_backends.engines.trtllm_api import load_api, sampling_arguments
from python_backends.engines.trtllm_handover import Handover
from python_backends.errors import untagged
from python_backends.sampling import SamplingParams
from python_backends.workers.targets import MissingRuntime
from tests.fakes import cuda, torch_cpu, trtllm
from tests.fakes.gpu_router import RouterProcess
from tests.golden import make_mrope_goldens as mrope_goldens

HIDDEN = 4
EOS = 90
NUMBERS = itertools.count()  # of pictures, as names
HASHES = [list(range(1, 9)), [-(1 << 31), *range(7)]]


def config_of(folder: Path, family: str = "llava_next", **text: Any) -> dict[str, Any]:
    """Artifacts as `tvlm build` leaves them, and the worker's configuration."""
    checkpoint = Checkpoint(
        name="tiny", image_size=32, tokens_per_tile=4, hidden_size=HIDDEN, vocab_size=100, kv_bytes_per_token=64,
        context_tokens=2000, image_token="<image>", eos_token_ids=(EOS, 91),
    )  # fmt: skip
    deployment: Deployment = parse_deployment({"checkpoint": "c", "profile": "gpu", "pools": {"text": text}}, "test")
    (folder / CHECKPOINT_FILE).write_text(checkpoint.model_dump_json())
    (folder / "llm").mkdir(exist_ok=True)
    config = {
        "model_type": family,
        "image_token_id": trtllm.IMAGE_TOKEN,
        "text_config": {"hidden_size": HIDDEN, "dtype": "float16"},
    }
    (folder / "llm" / "config.json").write_text(json.dumps(config))
    write_model_yaml(deployment, folder)
    return {"artifacts": str(folder), "deployment": deployment.model_dump(mode="json")}


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    trtllm.install(monkeypatch)


@pytest.fixture(params=["llava_next"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LlmEngine]:
    made = LlmEngine(config_of(tmp_path, request.param, stall_timeout_ms=1000))
    trtllm.LLM.calls.clear()
    yield made
    made.close()


with_handles = pytest.mark.parametrize("engine", ["qwen2_5_vl"], indirect=True)


def submit(engine: LlmEngine, *submissions: Submission) -> dict[int, str]:
    tensors = submission_tensors(submissions)
    texts = {name: [text.decode() for text in tensors.pop(name)] for name in ("sampling", "pool") if name in tensors}
    meta = {"names": list(tensors), **texts}
    _, reply = engine.handle("submit", list(tensors.values()), meta)
    refused: dict[int, str] = reply["refused"]
    return refused


def sequence(number: int, tokens: list[int], visuals: VisualRows = NO_VISUALS, **sampling: Any) -> Submission:
    params = SamplingParams(**{"max_tokens": 4, "ignore_eos": True, **sampling})
    return Submission(number, np.array(tokens, np.int32), visuals, params)


class Heard:
    """What the engine reported, put together again."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.finish: dict[int, Finish] = {}
        self.reports: dict[int, int] = {}
        self.errors: list[str] = []
        self.loads: list[EngineLoad] = []

    def listen(self, engine: LlmEngine, seconds: float = 5.0) -> Heard:
        """Until all sequences have ended."""
        deadline = time.monotonic() + seconds
        while engine.busy and time.monotonic() < deadline:
            self.step(engine)
        assert not engine.busy
        return self

    def step(self, engine: LlmEngine) -> None:
        report = engine.step()
        if report is None:
            return
        at = 0
        for i, request_id in enumerate(report.request_ids.tolist()):
            count = int(report.token_counts[i])
            self.tokens.setdefault(request_id, []).extend(report.tokens[at : at + count].tolist())
            self.finish[request_id] = Finish(report.finish_reasons[i])
            self.reports[request_id] = self.reports.get(request_id, 0) + 1
            at += count
        if report.error:
            self.errors.append(report.error)
        assert report.load is not None
        self.loads.append(report.load)


def test_tokens_stream_as_they_come_and_end_with_a_reason(engine: LlmEngine) -> None:
    assert submit(engine, sequence(1, [5, 10]), sequence(2, [88], max_tokens=9, ignore_eos=False)) == {}
    heard = Heard().listen(engine)
    assert heard.tokens == {1: [11, 12, 13, 14], 2: [89, EOS]}
    assert heard.finish == {1: Finish.LENGTH, 2: Finish.STOP}
    assert heard.reports[1] >= 2, "a stream, not one answer"


def test_text_goes_in_as_token_ids(engine: LlmEngine) -> None:
    submit(engine, sequence(1, [5, 10]))
    (asked,) = trtllm.LLM.calls
    assert asked.inputs == {"prompt_token_ids": [5, 10]}
    assert not asked.sampling.detokenize and not asked.sampling.add_special_tokens


def rows(*images: int) -> VisualRows:
    """Images of so many visual tokens; each row holds its number."""
    count = sum(images)
    told = np.array([[n, 1, n, *HASHES[i]] for i, n in enumerate(images)], np.int32)
    numbers = np.arange(count, dtype=np.float16)[:, np.newaxis]
    return VisualRows(np.tile(numbers, (1, HIDDEN)), images=told)


def test_embeddings_go_in_by_image_and_the_prompt_is_not_tokenised_again(engine: LlmEngine) -> None:
    tokens = [5, *[VISUAL_TOKEN] * 5, 8]  # two images side by side
    assert submit(engine, sequence(1, tokens, rows(2, 3))) == {}
    (asked,) = trtllm.LLM.calls
    assert asked.prompt == [5, 1000, 1001, 1002, 1003, 1004, 8]
    assert [image[:, 0].tolist() for image in asked.opened["images"]] == [[0, 1], [2, 3, 4]]
    assert asked.opened["images"][0].dtype == np.float16
    assert Heard().listen(engine).tokens[1] == [9, 10, 11, 12]


def test_images_that_nobody_described_are_the_runs_of_places(engine: LlmEngine) -> None:
    loose = VisualRows(rows(2, 3).copied)
    submit(engine, sequence(1, [-1, -1, 5, -1, -1, -1], loose))
    assert [len(image) for image in trtllm.LLM.calls[0].opened["images"]] == [2, 3]


@with_handles
def test_handles_carry_hashes_and_positions_until_the_prefill_is_done(engine: LlmEngine) -> None:
    tokens = [5, *[VISUAL_TOKEN] * 2, 6, *[VISUAL_TOKEN] * 3, 8]
    assert submit(engine, sequence(1, tokens, rows(2, 3))) == {}
    heard = Heard().listen(engine)
    (asked,) = trtllm.LLM.calls
    assert asked.disaggregated is not None
    assert asked.disaggregated.request_type == "context_and_generation"
    assert asked.disaggregated.multimodal_hashes == HASHES
    assert asked.prompt == [5, 1000, 1001, 6, 1002, 1003, 1004, 8]
    assert [image[:, 0].tolist() for image in asked.opened["images"]] == [[0, 1], [2, 3, 4]]
    positions, delta = mrope_positions(np.array(tokens, np.int32), np.array([[1, 2], [1, 3]], np.int32))
    np.testing.assert_array_equal(asked.opened["mrope"][0], positions)
    np.testing.assert_array_equal(asked.opened["mrope"][1], delta)
    assert heard.finish == {1: Finish.LENGTH}


@with_handles
def test_tensors_behind_handles_are_let_go_after_the_prefill(engine: LlmEngine) -> None:
    submit(engine, sequence(1, [5, -1, -1, 8], rows(2), max_tokens=400))
    handle = trtllm.LLM.calls[0].disaggregated.multimodal_embedding_handles[0]  # type: ignore[union-attr, index]
    heard = Heard()
    while not heard.tokens.get(1):
        heard.step(engine)
    with pytest.raises(KeyError):
        trtllm.open_handle(handle)


@pytest.fixture(scope="module")
def router() -> Iterator[RouterProcess]:
    made = RouterProcess(pages=8, hidden=HIDDEN)
    yield made
    made.worker.close()


def rows_on_gpu(router: RouterProcess, *images: int) -> VisualRows:
    """The same as `rows`, in pages."""
    here = rows(*images)
    address, lists, names = "", [], [str(next(NUMBERS)) for _ in images]
    for name, part in zip(names, np.split(here.copied, np.cumsum(images)[:-1]), strict=True):
        router.allocate(name, len(part))
        address, listed = router.pages("fill", name, part)
        lists.append(listed)
    for name in names:
        router.pages("release", name)
    return VisualRows(NO_VISUALS.copied, np.concatenate(lists), address, here.images)


@pytest.mark.parametrize("engine", ["llava_next", "qwen2_5_vl"], indirect=True)
def test_pages_on_its_gpu_reach_the_engine_without_leaving_it(
    engine: LlmEngine, router: RouterProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way in: the fake opens no handle of a GPU's memory in the process that made it, as CUDA does not."""
    cuda.install(monkeypatch)
    tokens = [5, *[VISUAL_TOKEN] * 2, 6, *[VISUAL_TOKEN] * 20, 8]
    visuals = rows_on_gpu(router, 2, 20)
    assert submit(engine, sequence(1, tokens, visuals)) == {}
    assert Heard().listen(engine).finish == {1: Finish.LENGTH}
    (asked,) = trtllm.LLM.calls
    assert [image[:, 0].tolist() for image in asked.opened["images"]] == [[0, 1], [*range(2, 22)]]
    assert asked.opened["images"][0].dtype == np.float16
    asked.inputs.clear()
    trtllm.LLM.calls.clear()
    assert not list(engine._api.SharedTensorContainer._given), "nothing else keeps it"


def test_pages_that_are_another_image_s_by_now_are_refused(
    engine: LlmEngine, router: RouterProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda.install(monkeypatch)
    late = rows_on_gpu(router, 8 * 16)
    rows_on_gpu(router, 8 * 16)
    (refusal,) = submit(engine, sequence(1, [*[VISUAL_TOKEN] * 128, 8], late)).values()
    assert untagged(refusal).message == "pages: they were given to another image meanwhile"


@with_handles
def test_images_without_a_grid_have_no_positions(engine: LlmEngine) -> None:
    (refusal,) = submit(engine, sequence(1, [-1, -1, 8], VisualRows(rows(2).copied))).values()
    assert untagged(refusal).message.startswith("images: each image needs the height and width")


def test_mrope_of_text_alone_counts_up() -> None:
    positions, delta = mrope_positions(np.array([3, 4, 5], np.int32), np.zeros((0, 2), np.int32))
    assert positions.tolist() == [[[0, 1, 2]]] * 3
    assert delta.tolist() == [[0]]


def test_mrope_of_an_image_is_its_grid() -> None:
    """By hand, after figure 3 of the paper: text, 2 x 3 tokens of an image, text."""
    tokens = np.array([9, 9, *[VISUAL_TOKEN] * 6, 9, 9], np.int32)
    positions, delta = mrope_positions(tokens, np.array([[2, 3]], np.int32))
    time_, height, width = positions[:, 0].tolist()
    assert time_ == [0, 1, 2, 2, 2, 2, 2, 2, 5, 6]
    assert height == [0, 1, 2, 2, 2, 3, 3, 3, 5, 6]
    assert width == [0, 1, 2, 3, 4, 2, 3, 4, 5, 6]
    assert delta.tolist() == [[7 - len(tokens)]]


MROPE = json.loads(mrope_goldens.FILE.read_text())


@pytest.mark.parametrize("case", MROPE, ids=lambda case: f"{len(case['grids'])} images, {len(case['ids'])} tokens")
def test_mrope_is_that_of_transformers(case: dict[str, Any]) -> None:
    tokens = np.array([VISUAL_TOKEN if token == mrope_goldens.IMAGE else token for token in case["ids"]], np.int32)
    positions, delta = mrope_positions(tokens, np.array(case["grids"], np.int32).reshape(-1, 2))
    assert positions[:, 0].tolist() == case["positions"]
    assert delta.tolist() == [[case["delta"]]]


def test_a_cancelled_sequence_is_aborted_and_the_others_go_on(engine: LlmEngine) -> None:
    submit(engine, sequence(1, [5], max_tokens=400), sequence(2, [20], max_tokens=8))
    heard = Heard()
    while not heard.tokens.get(1):
        heard.step(engine)
    engine.handle("cancel", [np.array([1, 77], np.uint64)], {})
    heard.listen(engine)
    assert heard.finish == {1: Finish.CANCELLED, 2: Finish.LENGTH}
    assert len(heard.tokens[1]) < 400
    assert engine.handle("stats", [], {})[1]["running"] == 0


@pytest.mark.parametrize(
    ("seed", "reason"),
    [
        (trtllm.BREAKS, "CUDA error: an illegal memory access was encountered"),
        (trtllm.TIMES_OUT, "it ended with 'timeout'"),
        (trtllm.ENDS_SILENTLY, "the engine ended it without a reason"),
    ],
)
def test_an_error_in_a_stream_ends_this_stream_only(engine: LlmEngine, seed: int, reason: str) -> None:
    submit(engine, sequence(1, [5], temperature=1.0, seed=seed, max_tokens=9), sequence(2, [20]))
    heard = Heard().listen(engine)
    assert heard.finish == {1: Finish.ERROR, 2: Finish.LENGTH}
    assert heard.tokens[1][:2] == [6, 7], "what came before it counts"
    assert heard.errors == [reason]


def test_what_the_engine_refuses_is_refused_by_name(engine: LlmEngine) -> None:
    refused = submit(engine, sequence(1, [5] * 950), sequence(2, [20]))
    assert untagged(refused[1]).message == (
        "sampling_parameters: the engine refuses them: "
        "The sum of prompt length (950) should not exceed max_num_tokens (900)"
    )
    assert Heard().listen(engine).finish == {2: Finish.LENGTH}


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (sequence(1, [5, 100]), "tokens: ids must be from 0 to 99, or -1"),
        (sequence(1, [5], max_tokens=1 << 20), "tokens: 1 and max_tokens = 1048576 are over 2000"),
        (sequence(1, [-1, 5, -1], rows(2)), "images: [2] visual tokens do not fill the prompt's places [1, 1]"),
    ],
)
def test_what_would_break_it_never_reaches_the_engine(engine: LlmEngine, bad: Submission, sentence: str) -> None:
    (refusal,) = submit(engine, bad).values()
    assert untagged(refusal).message == sentence
    assert not trtllm.LLM.calls


def test_an_engine_that_says_nothing_is_given_up(engine: LlmEngine) -> None:
    submit(engine, sequence(1, [5], temperature=1.0, seed=trtllm.STALLS))
    with pytest.raises(RuntimeError, match="said nothing for 1 s"):
        Heard().listen(engine)


@pytest.mark.parametrize("as_text", [True, False])
def test_its_figures_reach_the_reports(engine: LlmEngine, as_text: bool) -> None:
    statistics = {
        "iterLatencyMS": 12.5,
        "gpuMemUsage": 3 << 20,
        "numQueuedRequests": 2,
        "kvCacheStats": {"maxNumBlocks": 10, "usedNumBlocks": 4, "tokensPerBlock": 32, "reusedBlocks": 3},
    }
    trtllm.LLM.statistics.append(json.dumps(statistics) if as_text else statistics)
    submit(engine, sequence(1, [5, 6, 7], max_tokens=300))
    heard = Heard().listen(engine)
    assert max(load.kv_usage for load in heard.loads) == pytest.approx(0.4)
    assert sum(load.reused_tokens for load in heard.loads) == 96, "counted once"
    assert sum(load.prompt_tokens for load in heard.loads) == 3
    assert heard.loads[-1].kv_usage == 0, "nothing runs any more"
    assert (heard.loads[-1].waiting, heard.loads[-1].step_s) == (2, pytest.approx(0.0125))
    stats = engine.handle("stats", [], {})[1]
    assert (stats["step_ms"], stats["gpu_mb"], stats["queued"], stats["running"]) == (12.5, 3, 2, 0)


def test_model_yaml_is_what_the_engine_is_made_with(tmp_path: Path) -> None:
    engine = LlmEngine(config_of(tmp_path, max_running=6, prefill_tokens=512))
    engine.close()
    assert trtllm.LLM.arguments["model"] == str(tmp_path / "llm")
    assert trtllm.LLM.arguments["max_num_tokens"] == 512
    assert trtllm.LLM.arguments["cuda_graph_config"]["batch_sizes"] == [1, 2, 4, 6]


def test_sampling_in_its_terms() -> None:
    greedy = sampling_arguments(SamplingParams(max_tokens=3, min_tokens=2), (1, 2))
    assert (greedy["top_k"], greedy["min_tokens"], greedy["stop_token_ids"]) == (1, 2, [2])
    assert "temperature" not in greedy and "repetition_penalty" not in greedy
    drawn = sampling_arguments(
        SamplingParams(max_tokens=3, temperature=0.5, top_p=0.9, top_k=-1, seed=4, presence_penalty=1.0), (1,)
    )
    assert (drawn["temperature"], drawn["top_p"], drawn["seed"], drawn["presence_penalty"]) == (0.5, 0.9, 4, 1.0)
    assert "top_k" not in drawn and "stop_token_ids" not in drawn
    seeds = {sampling_arguments(SamplingParams(max_tokens=1, temperature=1.0), (1,))["seed"] for _ in range(3)}
    assert len(seeds) == 3


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path)
    monkeypatch.setattr(torch_cpu.cuda, "available", False)
    with pytest.raises(MissingRuntime, match=r"no CUDA device is there .* --gpus all"):
        LlmEngine(config)
    monkeypatch.setitem(importlib.import_module("sys").modules, "torch", None)
    with pytest.raises(MissingRuntime, match=r"PyTorch is not installed .* containers/Dockerfile"):
        LlmEngine(config)
    (tmp_path / "model.yaml").unlink()
    with pytest.raises(MissingRuntime, match=r"model.yaml is not there: build again"):
        LlmEngine(config)
    with pytest.raises(MissingRuntime, match=r"no visual tokens .* 'idefics3'; it does for llava, llava_next"):
        LlmEngine(config_of(tmp_path, "idefics3"))


def packages() -> list[str]:
    """The fake, and the real TensorRT-LLM where it can be imported."""
    return ["fake", *(["real"] if importlib.util.find_spec("tensorrt_llm") else [])]


@pytest.mark.parametrize("package", packages())
def test_calls_fit_the_signatures(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if package == "real":
        monkeypatch.undo()
    api = load_api()
    generate = inspect.signature(api.LLM.generate_async)
    generate.bind(None, {}, api.SamplingParams, streaming=True, disaggregated_params=None)
    inspect.signature(api.LLM.get_stats_async).bind(None, 2.0)
    inspect.signature(api.SamplingParams).bind(
        **sampling_arguments(SamplingParams(max_tokens=1, temperature=1.0, top_k=2, min_tokens=1), (1, 2)),
        repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1,
    )  # fmt: skip
    inspect.signature(api.DisaggregatedParams).bind(
        request_type="context_and_generation", multimodal_embedding_handles=[{}], multimodal_hashes=[[0] * 8],
        mrope_position_ids_handle={}, mrope_position_deltas_handle={},
    )  # fmt: skip
    assert callable(api.SharedTensorContainer.from_tensor) and callable(api.SharedTensorContainer.dump_to_dict)


@pytest.mark.parametrize("package", packages())
def test_a_tensor_on_the_gpu_comes_back_as_itself(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the handles that TensorRT-LLM makes and opens in one process."""
    if package == "real":
        monkeypatch.undo()
    module = importlib.import_module("tensorrt_llm._torch.shared_tensor")
    monkeypatch.setattr(module, "SharedTensorContainer", module.SharedTensorContainer)  # put back afterwards
    handover, keep = Handover.put_before(module), list[Any]()
    torch = importlib.import_module("torch")
    given = [torch.from_numpy(np.ones((3, 4), np.float16)).to(device) for device in ("cuda", torch.float16)]
    with handover.keeping(keep):
        params = importlib.import_module("tensorrt_llm.inputs.multimodal").MultimodalParams(
            multimodal_data={"multimodal_embedding": given}
        )
        params.to_handle("multimodal_data")
    params.to_tensor("multimodal_data")
    on_gpu, in_host = params.multimodal_data["multimodal_embedding"]
    assert on_gpu is given[0] and keep == [on_gpu]
    assert not in_host.is_cuda and in_host.shape == (3, 4)
