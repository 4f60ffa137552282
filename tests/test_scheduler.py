"""The scheduler: budgets, order, bounds, and that every request ends exactly once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from perf.plant import QUEUE_LIMITS, SLO_S, Plant, arrivals, job, settings
from python_backends.errors import Status
from python_backends.scheduling.admission import AdmissionSettings
from python_backends.scheduling.budgets import EncodeController
from python_backends.scheduling.jobs import Action, Encode, Job, Modality, Reject, Submit
from python_backends.scheduling.order import POLICIES
from python_backends.scheduling.scheduler import Scheduler


def submits(actions: list[Action]) -> list[int]:
    return [action.job_id for action in actions if isinstance(action, Submit)]


def test_text_goes_straight_to_a_replica_and_images_wait_for_all_their_items() -> None:
    scheduler = Scheduler(settings())
    assert scheduler.arrived(job(1), 0.0) == [Submit(1, 0)]
    assert scheduler.arrived(job(2, images=2), 0.0) == [Encode(2, 0, 0), Encode(2, 1, 0)]
    assert scheduler.encoded(2, 1, 0.1) == []
    assert scheduler.encoded(2, 0, 0.2) == [Submit(2, 0)]


def test_images_spread_over_the_encoders_with_the_fewest_pending_tokens() -> None:
    scheduler = Scheduler(settings(encoders=3))
    actions = scheduler.arrived(job(1, images=6), 0.0)
    assert [a.endpoint for a in actions if isinstance(a, Encode)] == [0, 1, 2, 0, 1, 2]


def test_replica_with_the_fewest_pending_tokens_is_chosen() -> None:
    scheduler = Scheduler(settings(replicas=2))
    assert scheduler.arrived(job(1, prompt=500), 0.0) == [Submit(1, 0)]
    assert scheduler.arrived(job(2, prompt=100), 0.0) == [Submit(2, 1)]
    assert scheduler.arrived(job(3, prompt=100), 0.0) == [Submit(3, 1)]
    scheduler.ended(1, 1.0)
    assert scheduler.arrived(job(4), 1.0) == [Submit(4, 0)]


def test_replica_that_is_away_gets_nothing_new_unless_all_are() -> None:
    scheduler = Scheduler(settings(replicas=2, running_limit=1))
    scheduler.replica_away(0, 5.0)
    assert scheduler.arrived(job(1), 1.0) == [Submit(1, 1)]
    assert scheduler.arrived(job(2), 1.0) == []  # waits for the one that is there
    assert scheduler.ended(1, 2.0) == [Submit(2, 1)]
    assert scheduler.arrived(job(3), 5.0) == [Submit(3, 0)]
    scheduler.ended(2, 6.0)
    scheduler.ended(3, 6.0)
    scheduler.replica_away(0, 9.0)
    scheduler.replica_away(1, 9.0)
    assert scheduler.arrived(job(4), 7.0) == [Submit(4, 0)]


@pytest.mark.parametrize(("policy", "order"), [("fcfs", [2, 3, 4]), ("text_first", [3, 4, 2]), ("slo", [3, 4, 2])])
def test_policy_decides_who_goes_next(policy: str, order: list[int]) -> None:
    scheduler = Scheduler(settings(policy=policy, running_limit=1))
    assert submits(scheduler.arrived(job(1), 0.0)) == [1]
    scheduler.arrived(job(2, 0.01, images=1), 0.01)
    scheduler.encoded(2, 0, 0.02)
    scheduler.arrived(job(3, 0.03), 0.03)
    scheduler.arrived(job(4, 0.04), 0.04)
    went = []
    for running in (1, *order[:-1]):
        went += submits(scheduler.ended(running, 0.1))
    assert went == order


def test_among_those_too_late_for_their_slo_the_cheap_go_first() -> None:
    scheduler = Scheduler(settings(running_limit=1))
    scheduler.arrived(job(1), 0.0)
    for number, prompt in ((2, 900), (3, 30), (4, 300)):
        scheduler.arrived(job(number, prompt=prompt), 0.0)
    went = []
    for running in (1, 3, 4):
        went += submits(scheduler.ended(running, 2.0))
    assert went == [3, 4, 2]


def test_job_whose_replica_is_lost_goes_to_another_one_and_leaves_nothing_behind() -> None:
    scheduler = Scheduler(settings(replicas=2))
    assert scheduler.arrived(job(1, prompt=500), 0.0) == [Submit(1, 0)]
    scheduler.token(1, 0.1)
    scheduler.replica_away(0, 5.0)
    assert scheduler.lost(1, 1.0) == [Submit(1, 1)]
    assert (scheduler.running, scheduler.prefill_tokens_in_flight) == ([0, 1], [0, 500])
    scheduler.token(1, 1.1)
    scheduler.ended(1, 2.0)
    assert (scheduler.running, scheduler.prefill_tokens_in_flight) == ([0, 0], [0, 0])
    assert scheduler.lost(1, 2.0) == []
    assert scheduler.arrived(job(2, prompt=10), 6.0) == [Submit(2, 0)], "no token is pending anywhere"


def test_expected_time_is_shared_by_the_replicas_and_weighs_tokens_alike() -> None:
    scheduler = Scheduler(settings(replicas=2, running_limit=1))
    for number in range(2):
        scheduler.arrived(job(number, prompt=400), 0.0)
    scheduler.token(0, 4.0)  # 10 ms a token
    scheduler.token(1, 4.0)
    scheduler.arrived(job(2, prompt=400), 4.0)
    assert scheduler.expected_first_token_s(job(3, prompt=100)) == pytest.approx(3.0)  # 400 for two, and its own
    scheduler.ended(0, 4.0)
    scheduler.ended(1, 4.0)
    for number in range(10, 30):
        scheduler.arrived(job(number, prompt=1), 5.0)
        scheduler.token(number, 5.1)  # 100 ms a token, but hardly a token
        scheduler.ended(number, 5.1)
    assert scheduler.expected_first_token_s(job(40, prompt=100)) < 3.0


def test_full_class_is_refused_with_the_limit_and_the_others_are_not() -> None:
    limits = AdmissionSettings({**QUEUE_LIMITS, Modality.IMAGE: 1})
    scheduler = Scheduler(settings(admission=limits, running_limit=1))
    scheduler.arrived(job(1), 0.0)
    assert not isinstance(scheduler.arrived(job(2, images=1), 0.0)[0], Reject)
    refused = scheduler.arrived(job(3, images=1), 0.0)[0]
    assert isinstance(refused, Reject)
    assert refused.error.status is Status.UNAVAILABLE
    assert "limit scheduler.classes.image.queue_limit = 1" in refused.error.message
    assert scheduler.arrived(job(4), 0.0) == []


def test_item_larger_than_the_encode_budget_is_refused_by_the_settings_name() -> None:
    scheduler = Scheduler(settings(admission=AdmissionSettings(QUEUE_LIMITS, encode_budget_tokens=63)))
    refused = scheduler.arrived(job(1, images=1), 0.0)[0]
    assert isinstance(refused, Reject)
    assert refused.error.status is Status.INVALID_ARG
    assert "64 visual tokens are over scheduler.encode_budget_tokens = 63" in refused.error.message


def test_deadline_that_cannot_be_met_is_refused_from_the_measured_rates() -> None:
    scheduler = Scheduler(settings(running_limit=1))
    scheduler.arrived(job(1, prompt=100), 0.0)
    scheduler.token(1, 1.0)  # 10 ms a prompt token
    scheduler.arrived(job(2, 1.0, prompt=200), 1.0)
    late, met = (Job(n, Modality.TEXT, (), 100, 8, 1.0, 0.5, deadline_s=d) for n, d in ((3, 3.9), (4, 4.1)))
    refused = scheduler.arrived(late, 1.0)[0]
    assert isinstance(refused, Reject)
    assert (
        refused.error.message
        == "deadline_ms: 2900 ms can't be met; the first token is expected in 3000 ms; retry after 1 s"
    )
    assert scheduler.arrived(met, 1.0) == []


def test_controller_tightens_over_the_slo_and_relaxes_with_slack() -> None:
    controller = EncodeController(most=1000, least=100, longest_gap_s=0.1)
    for _ in range(20):
        controller.gap(0.3)
        controller.tick()
    assert controller.limit == 100
    for _ in range(20):
        controller.gap(0.02)
        controller.tick()
    assert controller.limit == 1000


def test_controller_gives_all_when_nobody_decodes() -> None:
    controller = EncodeController(most=1000, least=100, longest_gap_s=0.1)
    controller.gap(0.3)
    assert controller.tick() < 1000
    assert controller.tick() == 1000


@pytest.mark.parametrize("policy", POLICIES)
def test_every_job_ends_exactly_once_and_the_same_input_gives_the_same_output(policy: str) -> None:
    def run() -> Plant:
        plant = Plant(Scheduler(settings(policy=policy)))
        plant.run(arrivals(3000, rate=30, image_share=0.3))
        return plant

    first, second = run(), run()
    assert sorted(first.ended) == list(range(3000))
    assert first.actions == second.actions
    assert not any(first.scheduler.waiting.values())
    assert first.scheduler.running == [0]
    assert first.scheduler.encode_tokens_in_flight == first.scheduler.prefill_tokens_in_flight == [0]


@pytest.mark.parametrize("policy", ["text_first", "slo"])
def test_waiting_is_bounded_as_stated_while_another_class_overloads(policy: str) -> None:
    """Text at three times the replica's rate for 200 s; a picture now and then must not starve."""
    aging_s, rate = 5.0, 4000.0
    plant = Plant(Scheduler(settings(policy=policy, aging_s=aging_s, running_limit=4)))
    texts = [Job(n, Modality.TEXT, (), 100, 1, n * 100 / (3 * rate), 0.5) for n in range(24_000)]
    pictures = [Job(100_000 + n, Modality.IMAGE, (64,), 164, 1, n * 4.0, 2.0) for n in range(50)]
    plant.run(sorted(texts + pictures, key=lambda j: j.arrived_s))
    waited = [plant.started[picture.job_id] - picture.arrived_s for picture in pictures]
    in_service = 2048 + 164  # what the prefill budget has handed over already, and the largest job
    ahead = 164 * (1 + aging_s // 4.0)  # pictures before it
    bound = aging_s + (ahead + in_service) * 2 / rate + 64 / 2000.0 + 0.1
    assert max(waited) <= bound


@hypothesis_settings(max_examples=15, deadline=None)
@given(
    policy=st.sampled_from(["text_first", "slo"]),
    victim=st.sampled_from(Modality),
    weights=st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=3, max_size=3),
    replicas=st.integers(1, 2),
    overload=st.floats(1.2, 3.0),
    largest_prompt=st.sampled_from([200, 1000, 3000]),  # the prefill budget is 2048
    seed=st.integers(0, 1000),
)
def test_any_class_waits_no_longer_than_stated_while_both_others_overload(
    *,
    policy: str,
    victim: Modality,
    weights: list[float],
    replicas: int,
    overload: float,
    largest_prompt: int,
    seed: int,
) -> None:
    """Two requests of a class, far apart; the others bring together `overload` times what the replicas can take."""
    aging_s, encode_rate, prefill_rate, budget, most_items = 0.5, 2000.0, 4000.0, 2048, 4
    shares = dict(zip(Modality, weights, strict=True))
    plant = Plant(
        Scheduler(settings(policy=policy, weights=shares, replicas=replicas, aging_s=aging_s, running_limit=64)),
        encode_rate,
        prefill_rate,
    )
    rng = random.Random(seed)

    def request(number: int, modality: Modality, at: float) -> Job:
        items = () if modality is Modality.TEXT else (64,) * rng.randint(1, most_items)
        return Job(number, modality, items, rng.randint(10, largest_prompt) + sum(items), 1, at, SLO_S[modality])

    others = [modality for modality in Modality if modality is not victim]
    mean_tokens = largest_prompt / 2 + 64 * (most_items + 1) / 3
    crowd, now = [], 0.0
    while now < 40.0:
        now += rng.expovariate(overload * replicas * prefill_rate / mean_tokens)
        crowd.append(request(len(crowd), rng.choice(others), now))
    rare = [request(1_000_000 + n, victim, 1.0 + 20.0 * n) for n in range(2)]
    plant.run(sorted(crowd + rare, key=lambda j: j.arrived_s))

    behind = sum(weights) / shares[victim]  # how much slower than alone its share of a stage is
    visual, prompt = 64 * most_items, largest_prompt + 64 * most_items
    bound = aging_s + 1.25 * prompt * behind / (replicas * prefill_rate) + (budget + prompt) / prefill_rate
    if victim is not Modality.TEXT:
        bound += (visual * behind + 1024 + visual) / encode_rate
    assert bound < 20.0  # so that none of its own class is ahead of it
    assert max(plant.started[job.job_id] - job.arrived_s for job in rare) <= bound


@pytest.mark.parametrize(("policy", "passed"), [("slo", [11, 12]), ("text_first", [11, 12]), ("fcfs", [])])
def test_aged_picture_that_finds_no_room_is_passed_by_text_that_does_for_a_quarter_of_its_tokens(
    policy: str, passed: list[int]
) -> None:
    scheduler = Scheduler(settings(policy=policy, prefill_budget_tokens=1000, aging_s=1.0))
    assert submits(scheduler.arrived(job(1, prompt=600), 0.0)) == [1]
    scheduler.arrived(job(2, 0.0, images=2, prompt=372), 0.0)  # 500 tokens: 400 are free
    scheduler.encoded(2, 0, 0.1)
    assert submits(scheduler.encoded(2, 1, 0.1)) == []
    went = []
    for number in (11, 12, 13):
        went += submits(scheduler.arrived(job(number, 2.0, prompt=60), 2.0))
    assert went == passed
    assert submits(scheduler.token(1, 2.5)) == [2, *(number for number in (11, 12, 13) if number not in passed)]


def test_picture_begun_before_an_older_one_that_has_no_room_for_its_visual_tokens_takes_nobody_with_it() -> None:
    limits = AdmissionSettings(QUEUE_LIMITS, waiting_visual_tokens=300)
    scheduler = Scheduler(settings(admission=limits, encode_budget_tokens=100, aging_s=1.0))

    def picture(number: int, items: tuple[int, ...], at: float, slo_s: float) -> Job:
        return Job(number, Modality.IMAGE, items, sum(items), 1, at, slo_s)

    scheduler.arrived(picture(1, (100,), 0.0, 1.0), 0.0)
    scheduler.arrived(picture(2, (100, 100, 100), 0.1, 50.0), 0.1)
    scheduler.arrived(picture(3, (90, 90), 0.2, 1.0), 0.2)
    assert scheduler.encoded(1, 0, 0.3) == [Encode(3, 0, 0), Submit(1, 0)]  # 3 has less slack than 2
    assert scheduler.encoded(3, 0, 2.0) == [Encode(3, 1, 0)]  # all are aged: 2 is first, and has no room
    assert scheduler.encoded(3, 1, 2.1) == [Submit(3, 0)]
    scheduler.token(1, 2.2)
    assert scheduler.token(3, 2.2) == [Encode(2, 0, 0)]


def test_fcfs_is_first_come_first_served_for_text() -> None:
    plant = Plant(Scheduler(settings(policy="fcfs", running_limit=1)))
    plant.run([job(n, n * 0.001) for n in range(200)])
    assert list(plant.started) == list(range(200))


class Machine(RuleBasedStateMachine):
    """Any order of events, also nonsense ones: no budget is passed, nothing is lost or done twice."""

    live = Bundle("live")

    @initialize(policy=st.sampled_from(POLICIES), encoders=st.integers(1, 2), replicas=st.integers(1, 2))
    def start(self, policy: str, encoders: int, replicas: int) -> None:
        self.settings = settings(
            policy=policy, encoders=encoders, replicas=replicas, encode_budget_tokens=200, prefill_budget_tokens=300,
            running_limit=3, aging_s=1.0, admission=AdmissionSettings(QUEUE_LIMITS, waiting_visual_tokens=450),
        )  # fmt: skip
        self.scheduler = Scheduler(self.settings)
        self.now = 0.0
        self.number = 0
        self.jobs: dict[int, Job] = {}
        self.encoding: set[tuple[int, int]] = set()
        self.encode_started: set[tuple[int, int]] = set()
        self.submitted: set[int] = set()
        self.ended: set[int] = set()

    def apply(self, actions: list[Action]) -> None:
        for action in actions:
            assert action.job_id not in self.ended
            if isinstance(action, Encode):
                key = (action.job_id, action.item)
                assert key not in self.encode_started
                self.encode_started.add(key)
                self.encoding.add(key)
            elif isinstance(action, Submit):
                assert action.job_id not in self.submitted
                items = range(len(self.jobs[action.job_id].item_tokens))
                assert not any((action.job_id, i) in self.encoding for i in items)
                self.submitted.add(action.job_id)

    @rule(target=live, images=st.lists(st.integers(1, 150), max_size=3), prompt=st.integers(1, 400), dt=st.floats(0, 2))
    def arrive(self, images: list[int], prompt: int, dt: float) -> object:
        self.now += dt
        self.number += 1
        modality = Modality.IMAGE if images else Modality.TEXT
        new = Job(self.number, modality, tuple(images), prompt + sum(images), 8, self.now, SLO_S[modality])
        self.jobs[new.job_id] = new
        self.apply(self.scheduler.arrived(new, self.now))
        return new.job_id

    @rule(number=live, item=st.integers(0, 2))
    def encoded(self, number: int, item: int) -> None:
        self.encoding.discard((number, item))
        self.apply(self.scheduler.encoded(number, item, self.now))

    @rule(number=live, dt=st.floats(0, 0.5))
    def token(self, number: int, dt: float) -> None:
        self.now += dt
        self.apply(self.scheduler.token(number, self.now))

    @rule(number=live)
    def lost(self, number: int) -> None:
        self.submitted.discard(number)
        self.apply(self.scheduler.lost(number, self.now))

    @rule(number=consumes(live))
    def end(self, number: int) -> None:
        self.ended.add(number)
        self.encoding = {key for key in self.encoding if key[0] != number}
        self.apply(self.scheduler.ended(number, self.now))
        assert self.scheduler.ended(number, self.now) == []

    @rule(dt=st.floats(0, 3))
    def tick(self, dt: float) -> None:
        self.now += dt
        self.apply(self.scheduler.tick(self.now))

    @invariant()
    def budgets_hold(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for used in self.scheduler.encode_tokens_in_flight:
            assert used <= self.settings.encode_budget_tokens
        assert self.scheduler.visual_tokens_waiting <= self.settings.admission.waiting_visual_tokens
        largest = max((j.prompt_tokens for j in self.jobs.values()), default=0)
        for used in self.scheduler.prefill_tokens_in_flight:
            assert used <= max(self.settings.prefill_budget_tokens, largest)
        assert all(running <= self.settings.running_limit for running in self.scheduler.running)
        waiting = len(self.jobs) - len(self.ended | self.submitted)
        assert sum(self.scheduler.waiting.values()) == waiting

    def teardown(self) -> None:
        """Whatever happened, the rest can be brought to its end."""
        if not hasattr(self, "scheduler"):
            return
        for number in self.jobs:
            self.now += 0.1
            if number not in self.ended:
                self.ended.add(number)
                self.apply(self.scheduler.ended(number, self.now))
        assert not any(self.scheduler.waiting.values())
        assert sum(self.scheduler.encode_tokens_in_flight) == sum(self.scheduler.prefill_tokens_in_flight) == 0


Machine.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
