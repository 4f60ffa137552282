"""The pure parts of the bench: statistics, order of a monolith, rates, guard, page."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perf.baselines.order import PICTURES_A_STEP, Waiting, plan
from perf.bench import accepted
from perf.bench.__main__ import _folder, main
from perf.bench.analysis import analyse
from perf.bench.machine import describe
from perf.bench.meter import Meter
from perf.bench.plan import LEVELS, Level, arms_in_order, capacity, offered
from perf.bench.ratios import TEXT_TTFT, Ratio, saturated
from perf.bench.report import write_report
from perf.bench.setup import Setup
from perf.bench.slo import isolated_slo
from perf.bench.store import Store
from perf.bench.targets import MISSED, REACHED, Target, targets
from perf.deployments import changed, parse_changes
from perf.load import Record, Run, load_run
from perf.statistics import TAIL, Interval, highest_quantile, make_blocks, paired_ratio, quantile
from perf.workloads import make_workload


@pytest.mark.parametrize(
    ("count", "q"), [(1000, 0.99), (999, 0.95), (200, 0.95), (199, 0.90), (100, 0.90), (99, 0.75), (39, 0.5)]
)
def test_a_quantile_needs_its_samples(count: int, q: float) -> None:
    assert highest_quantile(count, TAIL) == q


def test_unanswered_requests_are_the_tail() -> None:
    values = np.array([1.0] * 89 + [np.inf] * 11)
    assert quantile(values, 0.5) == 1.0
    assert quantile(values, 0.9) == np.inf


def test_paired_interval_is_tight_where_arms_differ_by_a_factor() -> None:
    rng = np.random.default_rng(1)
    base = rng.lognormal(0, 1.5, 400)
    blocks = make_blocks({"slow": (3 * base).tolist(), "fast": base.tolist()}, np.arange(400.0).tolist(), 10.0)
    ratio = paired_ratio(blocks, "slow", "fast", 0.9)
    assert ratio == Interval(pytest.approx(3.0), pytest.approx(3.0), pytest.approx(3.0))


def test_interval_covers_the_truth_of_independent_arms() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(20):
        values = {"a": (2 * rng.exponential(size=300)).tolist(), "b": rng.exponential(size=300).tolist()}
        blocks = make_blocks(values, np.arange(300.0).tolist(), 5.0)
        ratio = paired_ratio(blocks, "a", "b", 0.5)
        covered += ratio.low <= 2.0 <= ratio.high
    assert covered >= 16


waiting = st.lists(
    st.builds(Waiting, st.integers(0, 10**6), st.floats(0, 100), st.integers(0, 16)), unique_by=lambda w: w.number
)


@given(waiting, st.sampled_from(["fcfs", "text_first"]), st.booleans())
def test_a_monolith_always_goes_on_within_its_budget(requests: list[Waiting], policy: str, busy: bool) -> None:
    chosen = plan(requests, 100.0, policy, busy).encode
    assert bool(chosen) == bool(requests)
    assert sum(pictures for _, pictures in chosen) <= PICTURES_A_STEP
    left = {request.number: request.pictures_left for request in requests}
    assert all(0 <= pictures <= left[number] for number, pictures in chosen)


def test_fcfs_lets_nobody_overtake_and_text_first_does() -> None:
    requests = [Waiting(1, 0.0, 16), Waiting(2, 1.0, 4), Waiting(3, 2.0, 0)]
    assert plan(requests, 3.0, "fcfs", busy=True).encode == ((1, PICTURES_A_STEP),)
    assert plan(requests, 3.0, "text_first", busy=True).encode == ((3, 0), (2, 1))


def test_arms_take_turns_and_none_is_forgotten() -> None:
    level = LEVELS["full"]
    orders = [arms_in_order(level, index) for index in range(len(level.seeds))]
    assert orders[0][0] == "monolith"  # its capacity sets the rates
    for index, seed in enumerate(level.seeds):
        assert sorted(orders[index]) == sorted(arm for arm in level.arms if seed in level.seeds_of(arm))
    assert len(orders[0]) == len(level.arms)
    assert len(set(orders)) > 1


def record(number: int, modality: str, ttft_s: float, gap_s: float) -> Record:
    at = number * 0.5
    end_s = at + ttft_s + 3 * gap_s
    pictures = int(modality == "image")
    return Record(number, modality, pictures, at, "ok", "", at, at + ttft_s, end_s, [gap_s] * 3, 10, 4)


def a_run(kinds: list[str], ttft_s: float, gap_s: float) -> Run:
    records = [record(number, kind, ttft_s, gap_s) for number, kind in enumerate(kinds)]
    return Run(records, 0.5 * len(kinds) + 1, 0.02, 0.001)


@pytest.fixture
def measured(tmp_path: Path) -> tuple[Level, Store]:
    """A quick bench in which the product's first tokens come four times sooner."""
    level, store = LEVELS["quick"], Store(tmp_path)
    workload = make_workload("image-burst", rate=2.0, seconds=level.seconds["image-burst"], seed=1)
    workload.save(store.workload("image-burst", 1))
    kinds = [request.modality for request in workload.requests]
    for arm, ttft_s in (("monolith", 0.8), ("product", 0.2)):
        a_run(kinds, ttft_s, ttft_s / 10).save(store.run("image-burst", 1, arm))
        a_run(["text"] * 8, ttft_s, 0.01).save(store.run("saturation-single-text", 1000, arm))
        a_run(["image"] * 4, ttft_s, 0.01).save(store.run("saturation-single-image", 1000, arm))
    a_run(["text"] * 4, 0.05, 0.02).save(store.run("isolated-single-text", 1000, "monolith"))
    a_run(["image"] * 4, 0.10, 0.02).save(store.run("isolated-single-image", 1000, "monolith"))
    return level, store


def test_report_shows_ratios_classes_and_goodput(measured: tuple[Level, Store]) -> None:
    level, store = measured
    analysis = analyse(level, store)
    named = {ratio.name: ratio.interval.value for ratio in analysis.ratios}
    assert named["image-burst text TTFT monolith/product"] == pytest.approx(4.0)
    assert named["image-burst text time between tokens monolith/product"] == pytest.approx(4.0)
    assert named["image-burst requests within SLO product/monolith"] == np.inf  # the monolith kept none
    assert named["saturation text tokens/s product/monolith"] == pytest.approx(1.0)
    (table,) = analysis.tables
    cells = {(cell.arm, cell.modality): cell for cell in table.cells}
    assert cells["product", "text"].kept == 1.0  # 200 ms are within 5 x 50 ms
    assert cells["monolith", "text"].kept == 0.0
    page = write_report(store, store.folder, level, analysis, describe(), extras={"Extra": "a < b"}).read_text()
    assert "(e) triton-vlm" in page
    assert "image-burst: text TTFT, monolith" in page
    assert "a &lt; b" in page
    assert (store.folder / "image-burst.png").read_bytes().startswith(b"\x89PNG")


def test_slo_is_a_multiple_of_the_monolith_alone(measured: tuple[Level, Store]) -> None:
    slo = isolated_slo(measured[1])
    assert slo.ttft_s == {"text": pytest.approx(0.25), "image": pytest.approx(0.5)}
    many = record(0, "image", 1.0, 0.0)
    many.pictures = 10
    assert slo.ttft_slo_s(many) == pytest.approx(0.25 + 10 * 0.25)


def test_rates_follow_from_saturation() -> None:
    found = capacity(a_run(["text"] * 8, 0.1, 0.0), a_run(["image"] * 8, 0.1, 0.0))
    assert found.text_s == pytest.approx(5 / 8)
    assert found.picture_s == 0.0
    assert found.rate("single-text", 0.5) == pytest.approx(0.5 / found.text_s)
    drawn = make_workload("single-text", rate=found.rate("single-text", 0.5), seconds=2000, seed=1)
    assert offered(drawn, found) == pytest.approx(0.5, rel=0.1)


def test_guard_fails_only_far_below_what_was_accepted(tmp_path: Path) -> None:
    path = tmp_path / "accepted.json"

    def ratio(value: float) -> Ratio:
        return Ratio("x", TEXT_TTFT, "monolith", Interval(value, value, value), 100, 0.9)

    assert accepted.compare("quick", [ratio(1.0)], path) == []
    few = [
        Ratio("few", TEXT_TTFT, "monolith", Interval(3.0), 49, 0.5),
        Ratio("few", "rate", "monolith", Interval(3.0), 7),
    ]
    accepted.accept("quick", [ratio(3.0), *few], describe(), path)
    assert json.loads(path.read_text())["quick"]["ratios"] == {"x text TTFT monolith/product": 3.0}
    assert accepted.compare("quick", [ratio(1.1)], path) == []
    assert accepted.compare("full", [ratio(0.1)], path) == []  # other arrivals
    for fallen in ([ratio(0.5)], [ratio(np.nan)], []):
        (line,) = accepted.compare("quick", fallen, path)
        assert "was 3.00" in line


@pytest.mark.parametrize(
    ("low", "high", "quantile", "verdict"),
    [
        (3.1, 5.0, 0.99, REACHED),
        (0.5, 2.9, 0.99, MISSED),
        (2.0, 4.0, 0.99, "not certain: P99 above"),
        (3.1, 5.0, 0.5, "not certain: P50 above"),  # P99 is what is asked
        (3.1, 5.0, None, REACHED),  # a rate
    ],
)
def test_a_target_is_judged_by_its_interval_and_its_quantile(
    low: float, high: float, quantile: float | None, verdict: str
) -> None:
    ratio = Ratio("image-burst", TEXT_TTFT, "monolith", Interval(3.5, low, high), 100, quantile)
    assert Target("x", 3.0, ratio).verdict == verdict


def test_the_best_other_arm_is_the_one_to_beat() -> None:
    def against(arm: str, value: float) -> Ratio:
        return Ratio("share-10", TEXT_TTFT, arm, Interval(value, value, value), 1000, 0.99)

    found = [
        against("monolith", 5.0),
        against("split-nice", 0.8),
        against("text-first", 1.2),
        against("a-variant", 0.1),
    ]
    (target,) = targets(found)
    assert target.ratio.other == "split-nice"
    assert target.verdict == MISSED
    assert "(split-nice): 0.80 [0.80, 0.80] P99 n=1000, asked 1.00: missed" in str(target)


def test_too_few_blocks_have_no_interval() -> None:
    blocks = make_blocks({"a": [2.0] * 30, "b": [1.0] * 30}, np.arange(30.0).tolist(), 10.0)
    ratio = paired_ratio(blocks, "a", "b", 0.5)
    assert ratio.value == 2.0
    assert np.isnan([ratio.low, ratio.high]).all()
    assert str(ratio) == "2.00 [no interval]"


def test_gaps_of_a_request_stay_in_its_block() -> None:
    blocks = make_blocks({"a": [[1.0, 2.0], [], [3.0]]}, [0.0, 1.0, 12.0], 10.0)
    assert [block.values["a"].tolist() for block in blocks] == [[1.0, 2.0], [3.0]]


def test_a_resampled_quantile_is_that_of_the_repeated_values() -> None:
    rng = np.random.default_rng(3)
    values = {"a": rng.exponential(size=60).tolist(), "b": rng.exponential(size=60).tolist()}
    blocks = make_blocks(values, np.arange(60.0).tolist(), 10.0)
    for q in (0.5, 0.9):
        wanted = quantile(np.array(values["a"]), q) / quantile(np.array(values["b"]), q)
        assert paired_ratio(blocks, "a", "b", q).value == pytest.approx(wanted)
    wanted = np.mean(values["a"]) / np.mean(values["b"])
    assert paired_ratio(blocks, "a", "b", None).value == pytest.approx(wanted)


def test_a_ratio_to_nothing_is_infinite_and_of_two_nothings_none() -> None:
    at = np.arange(60.0).tolist()
    some, none, never = [1.0] * 60, [0.0] * 60, [np.inf] * 60

    def ratio(over: list[float], under: list[float], q: float | None) -> float:
        return paired_ratio(make_blocks({"a": over, "b": under}, at, 10.0), "a", "b", q).value

    assert ratio(some, none, None) == np.inf
    assert ratio(never, some, 0.9) == np.inf
    assert ratio(some, never, 0.9) == 0.0
    assert np.isnan([ratio(none, none, None), ratio(never, never, 0.9)]).all()


def test_a_variant_is_the_deployment_with_other_values(tmp_path: Path) -> None:
    deployment = Path(__file__).parents[1] / "deployments" / "bench-cpu.yaml"
    changes = parse_changes(["pools.vision.nice=7", "scheduler.classes.video.ttft_slo_ms=9000"])
    values = yaml.safe_load(changed(deployment, changes, tmp_path / "deep" / "x.yaml").read_text())
    assert values["pools"]["vision"]["nice"] == 7
    assert values["scheduler"]["classes"]["video"] == {"ttft_slo_ms": 9000}
    before = yaml.safe_load(deployment.read_text())
    assert values["pools"]["text"] == before["pools"]["text"]
    assert Path(values["checkpoint"]) == deployment.parents[1] / "checkpoints" / "bench"
    with pytest.raises(ValueError, match="'nice' is not KEY=VALUE"):
        parse_changes(["nice"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["quick", "--arms", "nope"], "--arms: nope is not one of monolith"),
        (["quick", "--accept", "--arms", "split-nice"], "--accept: only what a whole level measures"),
        (["quick", "--deployment", "nowhere.yaml"], "--deployment: nowhere.yaml is no file"),
        (["quick", "--seeds", "0"], "--seeds must be at least 1"),
        (["quick", "--variant", "product:a=1"], "'product' must be"),
        (["quick", "--variant", "x:a"], "'a' is not KEY=VALUE"),
        (["quick", "--variant", "x:a=["], "'a=[': the value is no YAML"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert complaint in capsys.readouterr().err + str(end.value)


def test_a_request_that_failed_weighs_as_many_gaps_as_its_answer_would_have_had(
    measured: tuple[Level, Store],
) -> None:
    level, store = measured
    path = store.run("image-burst", 1, "product")
    run = load_run(path)
    for failed in [one for one in run.records if one.modality == "text"][:-1]:
        failed.outcome, failed.answer_tokens = "UNAVAILABLE", 4
    run.save(path)
    named = {ratio.name: ratio.interval.value for ratio in analyse(level, store).ratios}
    assert named["image-burst text time between tokens monolith/product"] == 0.0


def test_the_slo_counts_tokens_and_not_pieces() -> None:
    many = record(0, "text", 0.1, 0.3)
    many.output_tokens = 10
    assert many.token_s == pytest.approx(0.1)


def test_saturation_compares_runs_of_the_same_requests_and_bears_an_arm_that_answers_nothing() -> None:
    fast, slow = (a_run(["text"] * 8, ttft_s, 0.01) for ttft_s in (0.1, 0.2))
    nothing = a_run(["text"] * 8, 0.1, 0.01)
    for one in nothing.records:
        one.output_tokens = 0
    ratio = saturated("text tokens/s", "split-nice", [fast, replace(fast, wall_s=100.0)], [slow])
    assert ratio.interval.value == pytest.approx(1.0)
    assert ratio.count == 8
    assert np.isinf(saturated("text tokens/s", "split-nice", [fast], [nothing]).interval.value)


DEPLOYMENT = Path(__file__).parents[1] / "deployments" / "bench-cpu.yaml"


def test_a_folder_takes_runs_of_one_set_up_only(tmp_path: Path) -> None:
    machine, folder = describe(), tmp_path / "full"

    def of(level: str = "full", deployment: Path = DEPLOYMENT, cores: int = 2, **nice: int) -> Setup:
        variants = {name: {"pools.vision.nice": value} for name, value in nice.items()}
        return Setup.of(level, replace(machine, cores=cores), deployment, variants)

    of(slow=9).claim(folder)
    of(fast=0, slow=8).claim(folder)  # it never ran with 9
    a_run(["text"], 0.1, 0.1).save(Store(folder).run("image-burst", 1, "slow"))
    of().claim(folder)
    other = changed(DEPLOYMENT, {"pools.vision.nice": 3}, tmp_path / "other.yaml")
    for wrong, what in (
        (of("quick"), "level"),
        (of(deployment=other), "deployment"),
        (of(cores=64), "cores"),
        (of(slow=9), "variant slow"),
    ):
        assert not wrong.fits(folder)
        with pytest.raises(ValueError, match=f"another {what} .*--output"):
            wrong.claim(folder)
    for broken in ("", "{}", "{bad"):
        (folder / "setup.json").write_text(broken)
        with pytest.raises(ValueError, match="another version of this bench"):
            of().claim(folder)


def test_a_level_goes_on_in_its_newest_folder_until_it_has_a_report(tmp_path: Path) -> None:
    setup = Setup.of("full", describe(), DEPLOYMENT, {})
    other = Setup.of("full", replace(describe(), cores=64), DEPLOYMENT, {})

    def folder(more: bool = False) -> str:
        return _folder(tmp_path, setup, "2026-03-03", more=more).name

    assert folder() == "2026-03-03-full"
    setup.claim(tmp_path / "2026-03-01-full")
    other.claim(tmp_path / "2026-03-02-full")
    for day in (1, 2):
        a_run(["text"], 0.1, 0.1).save(Store(tmp_path / f"2026-03-0{day}-full").run("image-burst", 1, "product"))
    assert folder() == folder(more=True) == "2026-03-01-full"
    (tmp_path / "2026-03-01-full" / "report.html").touch()
    assert folder() == "2026-03-03-full"
    assert folder(more=True) == "2026-03-01-full"  # more seeds, or a look at a part


def test_quick_measures_anew(tmp_path: Path) -> None:
    setup = Setup.of("quick", describe(), DEPLOYMENT, {})
    today = tmp_path / "2026-03-03-quick"
    a_run(["text"], 0.1, 0.1).save(Store(today).run("image-burst", 1, "product"))
    (today / "tools").mkdir()
    assert _folder(tmp_path, setup, "2026-03-03", more=False) == today
    Store(today).clear()
    assert [path.name for path in today.iterdir()] == ["tools"]


def test_the_meter_takes_its_own_work_from_the_work_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # wall, busy, own, stolen, in all
    samples = iter([(10.0, 40.0, 5.0, 1.0, 100.0), (14.0, 47.0, 6.0, 1.4, 108.0)])
    monkeypatch.setattr("perf.bench.meter._sample", lambda: next(samples))
    assert Meter().read() == (pytest.approx((7.0 - 1.0) / 4.0), pytest.approx(0.05))


def test_a_run_that_was_cut_off_is_named_and_no_figure(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    a_run(["text"] * 4, 0.1, 0.1).save(path)
    whole = path.read_text()
    assert len(load_run(path).records) == 4
    for cut in (whole[:-200], "".join(whole.splitlines(keepends=True)[:3]), ""):
        path.write_text(cut)
        with pytest.raises(ValueError, match=r"x\.jsonl is no whole run .*measure it again"):
            load_run(path)


def test_a_change_of_what_is_no_section_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"checkpoint\.x: checkpoint is no section"):
        changed(DEPLOYMENT, {"checkpoint.x": 1}, tmp_path / "x.yaml")
