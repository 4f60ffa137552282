"""What the watcher does about lost stubs, over a fake repository API: side by side, in order, and again."""

from __future__ import annotations

import threading

import pytest

from client.serving.control import RepositoryControl
from client.serving.errors import ServeError
from client.serving.stubs import Loss
from client.serving.watcher import Watcher


class FakeControl(RepositoryControl):
    """Keeps what is asked of it; `meet` models come back only when all of them are being loaded."""

    def __init__(self, *meet: str, broken: str = "") -> None:
        super().__init__("http://nowhere")
        self.events: list[str] = []
        self._meet, self._broken = meet, broken
        self._barrier = threading.Barrier(max(1, len(meet)))

    def reload(self, model: str, timeout_s: float) -> None:
        self.events.append(f"begin {model}")
        if model == self._broken:
            raise ServeError(f"load of model {model}: no")
        if model in self._meet:
            self._barrier.wait(20)
        self.events.append(f"end {model}")


def mend(control: FakeControl, *models: str) -> None:
    def restart() -> None:
        control.events.append("restart")

    Watcher(control, restart, 60.0).mend([Loss(model, 1, "died") for model in models])


def test_independent_models_are_loaded_side_by_side() -> None:
    control = FakeControl("llm_decoder_0", "llm_decoder_1", "vision_encoder")
    mend(control, "llm_decoder_0", "llm_decoder_1", "vision_encoder")
    assert sorted(control.events[:3]) == ["begin llm_decoder_0", "begin llm_decoder_1", "begin vision_encoder"]
    assert "restart" not in control.events


def test_models_of_one_ensemble_are_loaded_one_after_the_other() -> None:
    control = FakeControl()
    mend(control, "vision_encoder", "image_decode", "vision_encoder")
    assert control.events == ["begin image_decode", "end image_decode", "begin vision_encoder", "end vision_encoder"]


@pytest.mark.parametrize("models", [("vlm", "image_decode"), ("llm_decoder_0",)])
def test_lost_router_and_failed_reload_end_in_a_restart(models: tuple[str, ...]) -> None:
    control = FakeControl(broken="llm_decoder_0")
    mend(control, *models)
    assert control.events[-1] == "restart"
    assert "begin image_decode" not in control.events
