"""What the watcher does about lost stubs, over a fake repository API: side by side, in order, and again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from client.serving.control import RepositoryControl
from client.serving.errors import ServeError
from client.serving.stubs import Loss
from client.serving.watcher import Watcher
from tests.waiting import until


class FakeControl(RepositoryControl):
    """Keeps what is asked of it; models that are `held` come back when `go_on` is set."""

    def __init__(self, *held: str, broken: str = "") -> None:
        super().__init__("http://nowhere")
        self.events: list[str] = []
        self.go_on = threading.Event()
        self._held, self._broken = held, broken

    def reload(self, model: str, timeout_s: float) -> None:
        self.events.append(f"begin {model}")
        if model == self._broken:
            raise ServeError(f"load of model {model}: no")
        if model in self._held:
            assert self.go_on.wait(20)
        self.events.append(f"end {model}")

    def has_begun(self, *models: str) -> Callable[[], bool]:
        return lambda: {f"begin {model}" for model in models} <= set(self.events)


def watcher_of(control: FakeControl) -> Watcher:
    return Watcher(control, lambda: control.events.append("restart"), 60.0)


def losses(*models: str) -> list[Loss]:
    return [Loss(model, 1, "died") for model in models]


def finish(watcher: Watcher) -> None:
    def is_over() -> bool:
        watcher.check()
        return not watcher.is_mending

    assert until(is_over, 20)
    watcher.close()


def test_independent_models_are_loaded_side_by_side_also_when_they_are_lost_one_after_the_other() -> None:
    control = FakeControl("llm_decoder_0", "llm_decoder_1", "vision_encoder")
    watcher = watcher_of(control)
    watcher.mend(losses("llm_decoder_0"))
    assert until(control.has_begun("llm_decoder_0"), 20)
    watcher.mend(losses("llm_decoder_1", "vision_encoder"))
    assert until(control.has_begun("llm_decoder_1", "vision_encoder"), 20)
    control.go_on.set()
    finish(watcher)
    assert len(control.events) == 6


def test_models_of_one_ensemble_are_loaded_one_after_the_other() -> None:
    control = FakeControl("vision_encoder")
    watcher = watcher_of(control)
    watcher.mend(losses("vision_encoder", "vision_encoder"))
    assert until(control.has_begun("vision_encoder"), 20)
    watcher.mend(losses("image_decode"))
    control.go_on.set()
    finish(watcher)
    assert control.events == ["begin vision_encoder", "end vision_encoder", "begin image_decode", "end image_decode"]


def test_model_that_is_lost_while_it_is_loaded_is_loaded_again() -> None:
    control = FakeControl("llm_decoder_0")
    watcher = watcher_of(control)
    watcher.mend(losses("llm_decoder_0"))
    assert until(control.has_begun("llm_decoder_0"), 20)
    watcher.mend(losses("llm_decoder_0"))
    control.go_on.set()
    finish(watcher)
    assert control.events == ["begin llm_decoder_0", "end llm_decoder_0"] * 2


@pytest.mark.parametrize("models", [("vlm", "image_decode"), ("llm_decoder_0",)])
def test_lost_router_and_failed_reload_end_in_a_restart(models: tuple[str, ...]) -> None:
    control = FakeControl(broken="llm_decoder_0")
    watcher = watcher_of(control)
    watcher.mend(losses(*models))
    finish(watcher)
    assert control.events[-1] == "restart"
    assert "begin image_decode" not in control.events


def test_restart_gives_up_the_reloads_that_have_not_begun() -> None:
    control = FakeControl("vision_encoder", broken="llm_decoder_0")
    watcher = watcher_of(control)
    watcher.mend(losses("vision_encoder"))
    assert until(control.has_begun("vision_encoder"), 20)
    watcher.mend(losses("image_decode", "llm_decoder_0"))
    finish(watcher)
    control.go_on.set()
    assert until(lambda: "end vision_encoder" in control.events, 20)
    assert "restart" in control.events
    assert "begin image_decode" not in control.events


@pytest.mark.parametrize("failures", [5, 6])
def test_server_that_loses_a_stage_while_it_starts_is_started_again_but_not_for_ever(failures: int) -> None:
    starts = []

    def restart() -> None:
        starts.append(len(starts))
        if len(starts) <= failures:
            raise ServeError("a stub died")

    watcher = Watcher(FakeControl(), restart, 60.0)
    if failures < 6:
        watcher.mend(losses("vlm"))
    else:
        with pytest.raises(ServeError, match="a stub died"):
            watcher.mend(losses("vlm"))
    assert len(starts) == 6


def test_server_that_ends_by_itself_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("client.serving.watcher.time.sleep", pauses.append)
    control = FakeControl()
    watcher = watcher_of(control)
    for _ in range(6):
        watcher.revive(ServeError("signal 6"))
    with pytest.raises(ServeError, match="signal 6"):
        watcher.revive(ServeError("signal 6"))
    assert control.events == ["restart"] * 6
    assert pauses == [0, 1, 3, 7, 15, 30]
