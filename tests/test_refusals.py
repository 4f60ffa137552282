"""Refusals by reason: a closed set of labels, whatever clients write."""

from __future__ import annotations

import pytest

from python_backends.errors import ServingError, Status, invalid, unavailable
from python_backends.router.refusals import refusal_reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (invalid("image", "9 images are over the limit images_per_request = 8"), "images_per_request"),
        (invalid("image", "577 visual tokens are over the 64 of cache.encoder_mb = 1"), "cache.encoder_mb"),
        (invalid("image[3]", "it is empty (0 bytes)"), "image"),
        (invalid("messages[0].content[1]", "must be a part of type text"), "messages"),
        (invalid("text_input", "9000 prompt tokens leave no room within context_tokens = 2048"), "context_tokens"),
        (invalid("sampling_parameters", "unknown key 'my_key'"), "sampling_parameters"),
        (
            unavailable("7 text requests wait already (limit scheduler.classes.text.queue_limit = 7)"),
            "scheduler.classes.text.queue_limit",
        ),
        (unavailable("deadline_ms: 5 ms can't be met"), "deadline_ms"),
        (ServingError(Status.UNAVAILABLE, "vision_encoder: the worker is restarting"), "UNAVAILABLE"),
        (invalid("made_up_by_client", "no"), "INVALID_ARG"),
    ],
)
def test_reason_is_the_setting_or_field_that_the_error_names(error: ServingError, reason: str) -> None:
    assert refusal_reason(error) == reason
