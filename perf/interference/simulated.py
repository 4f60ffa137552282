"""The same workload in virtual time: the production scheduler, and stages as fast as the solo profile says.

    python -m perf.interference.simulated --encode-ms 667 --prefill-ms 3.93 --decode-ms 36.7 [--cores 2]

The three figures are what perf.interference.bound prints. It shows which trade-off each setting makes without a quiet
machine to try them on; what it leaves out (hops, caches, threads that wait for one another) makes it the best case.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from perf.interference.bound import Profile
from perf.interference.workload import BURST_PICTURES, TOKENS, Request, Seen, Summary, requests, summary
from perf.plant import settings
from python_backends.engines.pace import MOST_AHEAD, Pace
from python_backends.engines.slices import PICTURES, TEXT, PrefillSlices
from python_backends.engines.step_size import StepSize
from python_backends.scheduling.jobs import Action, Encode, Job, Modality, Submit
from python_backends.scheduling.scheduler import Scheduler

VISUAL, TEXT_PROMPT, QUESTION = 196, 50, 40
KV_BLOCK = 32
SECONDS = 150.0  # long enough for the burst to be answered while text still comes


@dataclass(frozen=True)
class Arrangement:
    """How the machine is shared."""

    name: str
    chunk: int = 256  # prompt tokens in a step, at most
    slice_tokens: int = 0  # at least, while others decode; 0: prompts go in whole, in order of arrival
    encode_share: float = 0.5  # of the CPU, while the token loop runs too
    turns: bool = False  # beyond its share encode gets what steps without prompt tokens leave of the slack
    tbt_slo_s: float = 0.072
    aging_s: float = 60.0
    policy: str = "slo"
    budgets: bool = True
    monolith: bool = False  # encode inside the token loop


@dataclass
class _Sequence:
    prompt: int
    ready: int = 0  # prompt tokens in the KV cache
    made: int = 0
    last_s: float = 0.0


@dataclass(frozen=True)
class _Slice:
    """In the engine for the step in which it was started."""

    machine: Machine
    started: int

    def is_done(self) -> bool:
        return self.machine.steps > self.started

    def cancel(self) -> None:
        raise AssertionError("nobody cancels here")


@dataclass
class Machine:
    """One run; `now` is virtual seconds."""

    profile: Profile
    cores: int
    how: Arrangement
    sent: Sequence[Request]
    now: float = 0.0
    seen: list[Seen] = field(default_factory=list)
    _running: dict[int, _Sequence] = field(default_factory=dict)
    _line: deque[int] = field(default_factory=deque)  # prompts, where they are not sliced
    _steps: int = 0
    _encoding: deque[tuple[int, int]] = field(default_factory=deque)
    _encode_left: float = 0.0  # CPU seconds of the first one

    def run(self) -> list[Seen]:
        """All requests to their ends."""
        least, most = self.how.slice_tokens, self.how.chunk
        self._slices = PrefillSlices(KV_BLOCK, max(least, most // 2), lambda _: _Slice(self, self._steps))
        self._step_size = StepSize(least, most)
        self._pace = Pace(self.how.tbt_slo_s)
        self.seen = [Seen(bool(request.images)) for request in self.sent]
        longest_gap_s = self.how.tbt_slo_s * (MOST_AHEAD if self.how.slice_tokens else 1)
        self._scheduler = Scheduler(
            settings(
                policy=self.how.policy, budgets=self.how.budgets, encode_budget_tokens=2 * VISUAL,
                prefill_budget_tokens=32768, largest_item_tokens=VISUAL, longest_gap_s=longest_gap_s,
                aging_s=self.how.aging_s,
            )
        )  # fmt: skip
        waiting = deque(enumerate(self.sent))
        while waiting or self._running or self._encoding:
            while waiting and waiting[0][1].at_s <= self.now:
                self._arrive(*waiting.popleft())
            if self._running:
                self._step()
            else:
                until = waiting[0][1].at_s if waiting else float("inf")
                finish = self.now + self._encode_left / self.cores if self._encoding else float("inf")
                self._pass(min(until, finish) - self.now, 1.0)
        return self.seen

    def _arrive(self, number: int, request: Request) -> None:
        items = (VISUAL,) * len(request.images)
        prompt = sum(items) + (QUESTION if items else TEXT_PROMPT)
        if self.how.monolith:
            self.now += len(items) * self.profile.encode_s / self.cores
            self._submit(number, prompt)
            return
        modality = Modality.IMAGE if items else Modality.TEXT
        job = Job(number, modality, items, prompt, TOKENS, self.now, _ttft_slo_s(len(items)))
        self._do(self._scheduler.arrived(job, self.now))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Encode):
                if not self._encoding:
                    self._encode_left = self.profile.encode_s
                self._encoding.append((action.job_id, action.item))
            elif isinstance(action, Submit):
                images = self.sent[action.job_id].images
                self._submit(action.job_id, len(images) * VISUAL + QUESTION if images else TEXT_PROMPT)

    def _submit(self, number: int, prompt: int) -> None:
        self._running[number] = _Sequence(prompt)
        if self.how.slice_tokens:
            self._slices.add(number, np.zeros((1, prompt, 1), np.float32), TEXT if prompt == TEXT_PROMPT else PICTURES)
        else:
            self._line.append(number)

    @property
    def steps(self) -> int:
        """Steps of the token loop that are over."""
        return self._steps

    def _step(self) -> None:
        decoding = [number for number, s in self._running.items() if s.ready == s.prompt]
        prefilled, done = self._prefill_slices(len(decoding)) if self.how.slice_tokens else self._prefill_line()
        p, begin = self.profile, self.now
        beside = p.prefill_s * len(decoding) if prefilled else p.step_s + p.prefill_s * max(0, len(decoding) - 1)
        alone_s = (prefilled * p.prefill_s + beside) / self.cores
        share = self._share(alone_s, prefills=len(decoding) < len(self._running)) if self._encoding else 0.0
        self._pass(alone_s / (1 - share), share)
        self._steps += 1
        self._step_size.took(prefilled, len(decoding), alone_s if self.how.turns else self.now - begin)
        for number in (*done, *decoding):
            self._token(number)

    def _share(self, step_s: float, *, prefills: bool) -> float:
        slack_s = self._pace.slack_s(self.now)
        spare = 1 - step_s / slack_s if self.how.turns and not prefills and 0 < slack_s < float("inf") else 0.0
        return max(spare, self.how.encode_share)

    def _prefill_slices(self, decoding: int) -> tuple[int, list[int]]:
        """Prompt tokens of this step, and the sequences whose prompts end in it."""
        ready, prefilled = self._slices.begin_step(self._step_size.room(decoding, self._pace.slack_s(self.now)))
        done = [number for number, _ in ready]
        for number in done:
            self._running[number].ready = self._running[number].prompt
        return prefilled, done

    def _prefill_line(self) -> tuple[int, list[int]]:
        """The same for whole prompts, first come, first served."""
        prefilled, done = 0, []
        while self._line and prefilled < self.how.chunk:
            sequence = self._running[self._line[0]]
            take = min(self.how.chunk - prefilled, sequence.prompt - sequence.ready)
            sequence.ready += take
            prefilled += take
            if sequence.ready == sequence.prompt:
                done.append(self._line.popleft())
        return prefilled, done

    def _token(self, number: int) -> None:
        sequence, result, at = self._running[number], self.seen[number], self.sent[number].at_s
        if sequence.made:
            result.gaps_s.append(self.now - sequence.last_s)
        else:
            result.ttft_s = self.now - at
        sequence.made, sequence.last_s = sequence.made + 1, self.now
        late = result.ttft_s > _ttft_slo_s(len(self.sent[number].images))
        decode_s = self._step_size.decode_s(sum(s.made > 0 for s in self._running.values()))
        self._pace.got_tokens(number, 1, self.now, late=late, decode_s=decode_s)
        if not self.how.monolith:
            self._do(self._scheduler.token(number, self.now))
        if sequence.made == TOKENS:
            result.total_s = self.now - at
            del self._running[number]
            self._pace.ended(number)
            if not self.how.monolith:
                self._do(self._scheduler.ended(number, self.now))

    def _pass(self, seconds: float, share: float) -> None:
        """Time passes; encode gets its share of it."""
        self.now += seconds
        work = seconds * self.cores * share
        while self._encoding and work >= self._encode_left - 1e-9:
            work -= self._encode_left
            job, item = self._encoding.popleft()
            self._encode_left = self.profile.encode_s
            self._do(self._scheduler.encoded(job, item, self.now))
        self._encode_left -= work if self._encoding else 0.0
        if not self.how.monolith:
            self._do(self._scheduler.tick(self.now))


SERVED = Arrangement("bench-cpu.yaml", 256, 32, 0.2, turns=True, tbt_slo_s=0.072)
FASTER = replace(SERVED, name="the same, tbt_slo_ms 140", tbt_slo_s=0.14)


def _ttft_slo_s(pictures: int) -> float:
    """As bench-cpu.yaml has it."""
    return 1.0 + 5.0 * pictures if pictures else 1.5


def arrangements() -> Iterator[Arrangement]:
    """The baselines, then the product from one end of the curve to the other."""
    yield Arrangement("monolith", monolith=True)
    yield Arrangement("fcfs, no budgets", policy="fcfs", budgets=False)
    yield SERVED
    yield FASTER
    yield replace(SERVED, name="the same, aging 5 s", aging_s=5.0)
    for share in (0.5, 0.33, 0.25, 0.1):
        for chunk, slice_tokens in ((256, 0), (64, 0), (128, 128), (64, 64), (32, 32), (128, 32)):
            name = f"encode share {share:.0%}, {_steps(chunk, slice_tokens)}"
            yield Arrangement(name, chunk, slice_tokens, share)


def _steps(most: int, least: int) -> str:
    if not least:
        return f"whole prompts, steps of {most}"
    return f"steps of {least}" if least == most else f"steps of {least} to {most}"


def figures(profile: Profile, cores: int, how: Arrangement) -> tuple[Summary, Summary]:
    """Alone, and with the burst."""
    alone, burst = (requests(SECONDS, burst=burst) for burst in (False, True))
    return (
        summary(alone, Machine(profile, cores, how, alone).run()),
        summary(burst, Machine(profile, cores, how, burst).run()),
    )


def main() -> None:
    """A table, one line an arrangement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encode-ms", type=float, required=True, help="a picture, CPU time of one core")
    parser.add_argument("--prefill-ms", type=float, required=True, help="a prompt token")
    parser.add_argument("--decode-ms", type=float, required=True, help="a step of one sequence")
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    profile = Profile(options.encode_ms / 1e3, options.prefill_ms / 1e3, options.decode_ms / 1e3)
    print(f"{options.cores} cores, {BURST_PICTURES} pictures a request; milliseconds, except ratios")
    print("| arrangement | text TTFT P99 alone | with the burst | ratio | longest gap | picture P99 | of monolith's |")
    print("|---|---|---|---|---|---|---|")
    monolith = 0.0
    for how in arrangements():
        alone, burst = figures(profile, options.cores, how)
        monolith = monolith or burst.image_p99
        print(
            f"| {how.name} | {alone.text_ttft_p99:.0f} | {burst.text_ttft_p99:.0f} | "
            f"{burst.text_ttft_p99 / alone.text_ttft_p99:.1f} | {burst.longest_gap:.0f} | {burst.image_p99:.0f} | "
            f"{burst.image_p99 / monolith:.2f} |"
        )


if __name__ == "__main__":
    main()
