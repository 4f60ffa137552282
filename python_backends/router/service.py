"""A request's life in the router: parse, check, encode, hand over, stream."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from tokenizers import Tokenizer

from python_backends.checkpoint import Checkpoint, load_checkpoint
from python_backends.deployment import Deployment, load_built_deployment
from python_backends.embeddings.pool import EmbeddingPool
from python_backends.engines.protocol import EngineLoad, Submission
from python_backends.errors import ServingError, StageGone, Status, cancelled, invalid, unavailable
from python_backends.media.layout import Layout
from python_backends.media.limits import ImageLimits
from python_backends.metrics import ENGINE_STEP, ENGINE_WAITING, PREFIX_HITS, PREFIX_QUERIES, RETRIES, Metrics, Registry
from python_backends.router.answer import Answer, Client, Piece
from python_backends.router.calls import with_retry
from python_backends.router.channel import DecoderChannel, new_request_id
from python_backends.router.dispatch import Dispatcher, Ticket
from python_backends.router.drain import DrainOrder
from python_backends.router.encoder import Encoder
from python_backends.router.fan_out import FanOut, RequestImages
from python_backends.router.outbox import Outbox
from python_backends.router.preparation import Preparation
from python_backends.router.prompt import Prompt, PromptBuilder
from python_backends.router.record import RequestRecord
from python_backends.router.request import VlmRequest, asks_to_stop
from python_backends.router.resume import Resumption
from python_backends.router.stages import Stages
from python_backends.router.text import TextAssembler
from python_backends.router.urgency import Urgency, parse_urgency
from python_backends.scheduling.jobs import Job, Modality

log = logging.getLogger(__name__)

LONGEST_ID = 80  # of a client's request id, in the log
POLL_S = 0.1  # for clients that went away, and for the order to drain


class Router:
    """Serves requests, all on the event loop of the first one."""

    def __init__(self, stages: Stages, artifacts: Path, registry: Registry) -> None:
        self._metrics = Metrics(registry)
        self._checkpoint: Checkpoint = load_checkpoint(artifacts)
        self._deployment: Deployment = load_built_deployment(artifacts)
        self._tokenizer = Tokenizer.from_file(str(artifacts / "tokenizer.json"))
        prompts = PromptBuilder(
            self._tokenizer,
            (artifacts / "chat_template.jinja").read_text(),
            self._checkpoint.image_token,
            self._checkpoint.bos_token,
            self._checkpoint.eos_token,
        )
        self._context_tokens = min(self._deployment.limits.context_tokens, self._checkpoint.context_tokens)
        self._dispatcher = Dispatcher(self._deployment, self._checkpoint, self._metrics)
        pool_mb = self._deployment.cache.encoder_mb
        pool = EmbeddingPool(
            pool_mb << 20, self._checkpoint.hidden_size, self._shaped_by(artifacts), self._deployment.pages_gpu
        )
        self._encoder = Encoder(stages, self._most_images_in_encode(), pool, self._metrics)
        limits = self._deployment.limits.model_copy(update={"context_tokens": self._context_tokens})
        self._fan_out = FanOut(
            self._encoder, ImageLimits.of(limits), Layout.of(self._checkpoint), pool_mb, self._metrics
        )
        token_bytes = max(len(token.encode()) for token in self._tokenizer.get_vocab())
        self._preparation = Preparation(limits, self._checkpoint.image_token, prompts, token_bytes, self._fan_out)
        self._stages = stages
        self._outbox = Outbox()
        self._channels: list[DecoderChannel] = []
        self._active: dict[asyncio.Task[None], Client] = {}
        self._watch: asyncio.Task[None] | None = None
        self._drain_order = DrainOrder.from_environment()
        self._last_word: ServingError | None = None  # what is said to those who are cut off by the end

    async def serve(self, arrays: Mapping[str, NDArray[Any]], parameters: str, client: Client) -> None:
        """Answer one request, with its tensors and its Triton parameters (JSON).

        Every way it can end is an answer to the client.
        """
        if self._watch is None:
            replicas = range(self._deployment.pools.text.replicas)
            self._channels = [DecoderChannel(self._stages, i, self._note_load) for i in replicas]
            self._watch = asyncio.create_task(self._watch_clients())
        try:
            if asks_to_stop(arrays):
                await self._stop(client)
                return
        except ServingError as error:
            client.fail(error)
            return
        record = RequestRecord(client.request_id[:LONGEST_ID])
        begin = time.monotonic()
        task = asyncio.create_task(self._serve(arrays, parameters, client, begin, record))
        self._active[task] = client
        try:
            await task
        except asyncio.CancelledError:  # before it had begun
            _fail(client, self._last_word or cancelled(), record)
        finally:
            del self._active[task]
            record.write((time.monotonic() - begin) * 1e3)
            record.count(self._metrics)

    def close(self) -> None:
        """Give up what runs."""
        if self._watch is not None:
            self._watch.cancel()
        for task in self._active:
            task.cancel()
        self._dispatcher.close()
        self._metrics.close()
        self._preparation.close()
        self._encoder.close()
        for channel in self._channels:
            channel.close()

    async def _stop(self, client: Client) -> None:
        """End the requests that have this one's id; answered when they are (ServingError)."""
        if not client.request_id:
            raise invalid("stop", "it ends the requests with the id of the request that it comes in, which has none")
        named = [task for task, other in self._active.items() if other.request_id == client.request_id]
        for task in named:
            task.cancel()
        if named:
            await asyncio.wait(named)
        client.send(Piece(""), last=True)

    async def _serve(
        self,
        arrays: Mapping[str, NDArray[Any]],
        parameters: str,
        client: Client,
        begin: float,
        record: RequestRecord,
    ) -> None:
        try:
            urgency = parse_urgency(parameters)
            await _in_time(urgency, self._answer(arrays, urgency, client, begin, record))
        except asyncio.CancelledError:
            _fail(client, self._last_word or cancelled(), record)
        except ServingError as error:
            _fail(client, error, record)
        except Exception as error:
            log.exception("a request failed")
            _fail(client, ServingError(Status.INTERNAL, f"{type(error).__name__}: {error}"), record)

    async def _answer(
        self,
        arrays: Mapping[str, NDArray[Any]],
        urgency: Urgency,
        client: Client,
        begin: float,
        record: RequestRecord,
    ) -> None:
        prepared = await self._preparation.prepare(arrays, record)
        request, prompt = prepared.request, prepared.prompt
        images = self._fan_out.look_up(prepared.pictures)
        try:
            record.visual_tokens = sum(images.tokens)
            max_tokens = self._check_context(request, prompt, record.visual_tokens)
            assembler = TextAssembler(self._tokenizer, request.sampling.stop)
            record.answer = answer = Answer(request, prompt, assembler, client, self._outbox, begin=begin)
            job = self._job(images, prepared.modality, urgency, prompt, max_tokens)
            ticket = self._dispatcher.arrive(job, self._encoder.pool.usage.held_share)
            record.admitted = True
            try:
                answer.encoded(await images.embed(ticket))
                replica = await ticket.replica()
                submission = self._submission(request, prompt, images, job)
                await self._stream(replica, submission, answer, ticket, images)
            finally:
                ticket.close()
        finally:
            images.release()

    async def _stream(
        self, replica: int, submission: Submission, answer: Answer, ticket: Ticket, images: RequestImages
    ) -> None:
        """Follow a sequence to its end; when its engine dies, go on after its last token, on another one if need be."""
        resumption = Resumption(submission)

        def on_retry(error: ServingError) -> None:
            log.warning("going on after %d tokens after: %s", len(answer.tokens), error.message)
            self._metrics.record(RETRIES, 1, stage="decode")

        async def follow() -> None:
            nonlocal replica
            await images.embed_again()  # nothing the first time
            try:
                await _follow(self._channels[replica], resumption, answer, ticket, images)
            except StageGone:
                self._dispatcher.replica_away(replica)
                replica = await ticket.another_replica()
                raise

        await with_retry(follow, on_retry)

    def _job(self, images: RequestImages, modality: Modality, urgency: Urgency, prompt: Prompt, max_tokens: int) -> Job:
        now = time.monotonic()
        promised = getattr(self._deployment.scheduler.classes, modality.value)
        return Job(
            job_id=new_request_id(),
            modality=modality,
            item_tokens=images.missing_tokens,
            prompt_tokens=self._checkpoint.prompt_tokens(prompt.text_tokens, sum(images.tokens)),
            answer_tokens=max_tokens,
            arrived_s=now,
            ttft_slo_s=urgency.ttft_slo_s(promised.ttft_slo_ms + len(images.tokens) * promised.ttft_slo_per_image_ms),
            deadline_s=now + urgency.deadline_ms / 1e3 if urgency.deadline_ms else None,
        )

    def _note_load(self, replica: int, load: EngineLoad) -> None:
        self._dispatcher.note_kv_usage(replica, load.kv_usage)
        if load.prompt_tokens:
            self._metrics.record(PREFIX_QUERIES, load.prompt_tokens, replica=str(replica))
            self._metrics.record(PREFIX_HITS, load.reused_tokens, replica=str(replica))
        if load.step_s:
            self._metrics.record(ENGINE_WAITING, load.waiting, replica=str(replica))
            self._metrics.record(ENGINE_STEP, load.step_s, replica=str(replica))

    def _shaped_by(self, artifacts: Path) -> bytes:
        """All beside an image's bytes that shapes its visual tokens, as far as it can change between builds."""
        record = artifacts / "build.json"  # fingerprints of the weights and of the preprocessing
        vision = self._deployment.pools.vision
        parts = [self._checkpoint.model_dump_json().encode(), vision.precision.encode()]
        return b"\n".join([*parts, record.read_bytes() if record.exists() else b""])

    def _most_images_in_encode(self) -> int:
        return max(1, self._deployment.scheduler.encode_budget_tokens // self._checkpoint.tokens_per_tile)

    def _submission(self, request: VlmRequest, prompt: Prompt, images: RequestImages, job: Job) -> Submission:
        return Submission(
            request_id=new_request_id(),
            tokens=prompt.with_visual_tokens(images.tokens),
            visuals=images.rows(),
            sampling=request.sampling.model_copy(update={"max_tokens": job.answer_tokens}),
            due_s=job.arrived_s + job.ttft_slo_s,
        )

    def _check_context(self, request: VlmRequest, prompt: Prompt, visual_tokens: int) -> int:
        """The answer's token limit, once the prompt fits (ServingError, INVALID_ARG)."""
        limits, limit = self._deployment.limits, self._context_tokens
        used = self._checkpoint.prompt_tokens(prompt.text_tokens, visual_tokens)
        if used >= limit:
            raise invalid(
                request.text_field,
                f"{used} prompt tokens ({prompt.text_tokens} of text, {visual_tokens} visual) leave no room for an "
                f"answer within context_tokens = {limit}",
            )
        asked = request.sampling.max_tokens
        name, least = ("max_tokens", asked) if asked is not None else ("min_tokens", request.sampling.min_tokens)
        if used + least > limit:
            raise invalid(
                "sampling_parameters", f"{name} = {least} and {used} prompt tokens are over context_tokens = {limit}"
            )
        return asked if asked is not None else min(max(limits.default_max_tokens, least), limit - used)

    async def _watch_clients(self) -> None:
        while self._drain_order.grace_s() is None:
            await asyncio.sleep(POLL_S)
            self._cancel_those_gone()
        await self._drain(self._drain_order.grace_s() or 0.0)

    def _cancel_those_gone(self) -> None:
        for task, client in list(self._active.items()):
            try:
                if client.is_cancelled():
                    task.cancel()
            except Exception:
                log.exception("whether a client went away can't be told")

    async def _drain(self, grace_s: float) -> None:
        """Refuse what comes and what has images to encode still; the rest has so long to finish."""
        log.info("draining: %d requests have %g s to finish", len(self._active), grace_s)
        end_s = time.monotonic() + grace_s
        self._dispatcher.drain()
        while self._active and time.monotonic() < end_s:
            await asyncio.sleep(POLL_S)
            self._cancel_those_gone()
        self._last_word = unavailable(f"draining: the answer was not complete within the grace time of {grace_s:g} s")
        for task in self._active:
            task.cancel()
        while self._active:
            await asyncio.sleep(POLL_S)
        self._drain_order.report_done()


async def _in_time(urgency: Urgency, answer: Coroutine[Any, Any, None]) -> None:
    """The answer within the request's deadline (ServingError, UNAVAILABLE)."""
    if urgency.deadline_ms is None:
        await answer
        return
    try:
        await asyncio.wait_for(answer, urgency.deadline_ms / 1e3)
    except asyncio.TimeoutError:
        raise unavailable(f"deadline_ms: the answer was not complete within {urgency.deadline_ms:g} ms") from None


def _fail(client: Client, error: ServingError, record: RequestRecord) -> None:
    record.fail(error)
    client.fail(error)


async def _follow(
    channel: DecoderChannel, resumption: Resumption, answer: Answer, ticket: Ticket, images: RequestImages
) -> None:
    sequence = channel.submit(resumption.next_submission(answer.tokens, images.rows()))
    try:
        async for news in sequence:
            images.release()  # prefill is done
            ticket.token()
            fresh = resumption.new(news)
            if fresh is not None:
                answer.add(fresh)
            if answer.ended:
                return
    finally:
        channel.cancel(sequence)
