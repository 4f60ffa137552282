"""A request's life in the router: parse, check, encode, hand over, stream."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from python_backends.checkpoint import Checkpoint, load_checkpoint
from python_backends.deployment import Deployment, load_built_deployment
from python_backends.engines.protocol import Finish, Submission
from python_backends.errors import ServingError, Status, cancelled, invalid, unavailable
from python_backends.router.answer import Answer, Client
from python_backends.router.channel import DecoderChannel, new_request_id
from python_backends.router.fan_out import FanOut
from python_backends.router.prompt import Prompt, PromptBuilder
from python_backends.router.request import VlmRequest, parse_request
from python_backends.router.stages import Embedding, Stages
from python_backends.router.text import TextAssembler

log = logging.getLogger(__name__)

CANCEL_POLL_S = 0.1


class Router:
    """Serves requests on one event loop; make it there."""

    def __init__(self, stages: Stages, artifacts: Path) -> None:
        self._checkpoint: Checkpoint = load_checkpoint(artifacts)
        self._deployment: Deployment = load_built_deployment(artifacts)
        self._tokenizer = Tokenizer.from_file(str(artifacts / "tokenizer.json"))
        self._prompts = PromptBuilder(
            self._tokenizer, (artifacts / "chat_template.jinja").read_text(), self._checkpoint.image_token
        )
        pools = self._deployment.pools
        # two batches for each encoder: one runs while the next one fills
        self._fan_out = FanOut(stages, 2 * pools.vision.batch_size * pools.vision.instances)
        self._channels = [DecoderChannel(stages, i) for i in range(pools.text.replicas)]
        self._running = asyncio.Semaphore(pools.text.max_running * pools.text.replicas)
        self._waiting = 0
        self._active: dict[asyncio.Task[None], Client] = {}
        self._watch = asyncio.create_task(self._watch_clients())

    async def serve(self, arrays: Mapping[str, NDArray[Any]], client: Client) -> None:
        """Answer one request; every way it can end is an answer to the client."""
        task = asyncio.create_task(self._serve(arrays, client))
        self._active[task] = client
        try:
            await task
        finally:
            del self._active[task]

    def close(self) -> None:
        """Give up what runs; called when the model is unloaded."""
        self._watch.cancel()
        for task in self._active:
            task.cancel()
        self._fan_out.close()
        for channel in self._channels:
            channel.close()

    async def _serve(self, arrays: Mapping[str, NDArray[Any]], client: Client) -> None:
        record: dict[str, Any] = {}
        begin = time.monotonic()
        try:
            request = parse_request(arrays, self._deployment.limits, self._checkpoint.image_token)
            await self._answer(request, client, begin, record)
            record["outcome"] = "ok"
        except ServingError as error:
            record |= {"outcome": error.status.value, "error": error.message}
            client.fail(error)
        except asyncio.CancelledError:
            record["outcome"] = Status.CANCELLED.value
            client.fail(cancelled())
        except Exception as error:
            log.exception("a request failed")
            record |= {"outcome": Status.INTERNAL.value, "error": repr(error)}
            client.fail(ServingError(Status.INTERNAL, f"{type(error).__name__}: {error}"))
        finally:
            log.info("%s", json.dumps(record | {"total_ms": round((time.monotonic() - begin) * 1e3, 1)}))

    async def _answer(self, request: VlmRequest, client: Client, begin: float, record: dict[str, Any]) -> None:
        prompt = self._prompts.build(request.messages)
        visual = self._checkpoint.tokens_per_tile * len(request.images)
        record |= {"modality": "image" if request.images else "text", "images": len(request.images)}
        record |= {"text_tokens": prompt.text_tokens, "visual_tokens": visual}
        max_tokens = self._check_context(request, prompt, visual)
        if self._waiting >= self._deployment.limits.waiting_requests:
            raise unavailable(f"{self._waiting} requests wait already (limit waiting_requests)")
        answer = Answer(request, prompt, client, begin)
        self._waiting += 1
        try:
            embeddings = await self._fan_out.embed(request.images)
            answer.encoded(embeddings)
            await self._running.acquire()
        finally:
            self._waiting -= 1
        try:
            await self._stream(self._submission(request, prompt, embeddings, max_tokens), answer)
        finally:
            self._running.release()
        record |= {"output_tokens": answer.output_tokens, **answer.timing.rounded()}

    async def _stream(self, submission: Submission, answer: Answer) -> None:
        channel = min(self._channels, key=lambda c: c.pending_tokens)  # chosen now, with full information
        answer.input_tokens = len(submission.tokens)
        assembler = TextAssembler(self._tokenizer, submission.sampling.stop)
        sequence = channel.submit(submission)
        try:
            async for news in sequence:
                answer.tokens(len(news.tokens), news.prefill_ms)
                text = assembler.feed(news.tokens)
                if assembler.stopped:
                    answer.finish(text, Finish.STOP)
                    return
                if news.finish is not Finish.RUNNING:
                    answer.finish(text + assembler.finish(), news.finish)
                    return
                answer.text(text)
        finally:
            channel.cancel(sequence)

    def _submission(
        self, request: VlmRequest, prompt: Prompt, embeddings: list[Embedding], max_tokens: int
    ) -> Submission:
        rows = [e.visual_tokens for e in embeddings]
        return Submission(
            request_id=new_request_id(),
            tokens=prompt.with_visual_tokens([len(r) for r in rows]),
            visual_tokens=np.concatenate(rows) if rows else np.zeros((0, self._checkpoint.hidden_size), np.float16),
            sampling=request.sampling.model_copy(update={"max_tokens": max_tokens}),
        )

    def _check_context(self, request: VlmRequest, prompt: Prompt, visual_tokens: int) -> int:
        """The answer's token limit, once the prompt fits (ServingError, INVALID_ARG)."""
        limits = self._deployment.limits
        limit = min(limits.context_tokens, self._checkpoint.context_tokens)
        used = prompt.text_tokens + visual_tokens
        if used >= limit:
            raise invalid(
                "prompt",
                f"{used} tokens ({prompt.text_tokens} of text, {visual_tokens} visual) leave no room for an answer "
                f"within context_tokens = {limit}",
            )
        asked = request.sampling.max_tokens
        if asked is None:
            return min(max(limits.default_max_tokens, request.sampling.min_tokens), limit - used)
        if used + asked > limit:
            raise invalid(
                "sampling_parameters",
                f"max_tokens = {asked} and {used} prompt tokens are over context_tokens = {limit}",
            )
        return asked

    async def _watch_clients(self) -> None:
        while True:
            await asyncio.sleep(CANCEL_POLL_S)
            for task, client in list(self._active.items()):
                if client.is_cancelled():
                    task.cancel()
