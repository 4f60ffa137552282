"""Workloads are repeatable, keep their rate and shares, and survive their file."""

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from perf.workloads import SHAPES, Workload, load_workload, make_workload
from perf.workloads.payload import picture_bytes


@pytest.mark.parametrize("name", SHAPES)
def test_same_arguments_same_requests(name: str) -> None:
    first = make_workload(name, rate=3.0, seconds=40, seed=5)
    assert first == make_workload(name, rate=3.0, seconds=40, seed=5)
    assert first != make_workload(name, rate=3.0, seconds=40, seed=6)
    times = [request.at_s for request in first.requests]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 40


@pytest.mark.parametrize("name", SHAPES)
def test_keeps_rate_and_bounds(name: str) -> None:
    counts = [len(make_workload(name, rate=2.0, seconds=300, seed=seed).requests) for seed in range(8)]
    assert np.mean(counts) == pytest.approx(600, rel=0.25)  # ServeGen's clients come in bursts
    for request in make_workload(name, rate=2.0, seconds=300, seed=1).requests:
        assert len(request.pictures) <= 16
        assert 1 <= len(request.prompt.split()) <= 1024
        assert 2 <= request.answer_tokens <= 128
        assert bool(request.pictures) == (request.modality != "text")


def test_more_requests_than_anybody_means_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rate 2 x seconds 1e\+09 are over the limit of 100,000 requests"):
        make_workload("single-text", rate=2.0, seconds=1e9, seed=1)


def shares(workload: Workload) -> dict[str, float]:
    counts = Counter(request.modality for request in workload.requests)
    return {modality: count / len(workload.requests) for modality, count in counts.items()}


def test_modalities_have_their_shares() -> None:
    assert shares(make_workload("azure-lmm", rate=10, seconds=400, seed=1))["image"] == pytest.approx(0.52, abs=0.03)
    assert shares(make_workload("share-10", rate=10, seconds=400, seed=1))["image"] == pytest.approx(0.10, abs=0.03)
    mixed = shares(make_workload("mix-80-15-5", rate=10, seconds=400, seed=1))
    assert mixed == pytest.approx({"text": 0.80, "image": 0.15, "video": 0.05}, abs=0.03)


def test_burst_changes_pictures_and_not_the_rate() -> None:
    requests = make_workload("image-burst", rate=10, seconds=300, seed=2).requests
    middle = [request for request in requests if 100 <= request.at_s < 200]
    outside = [request for request in requests if not 100 <= request.at_s < 200]
    assert len(middle) / len(requests) == pytest.approx(1 / 3, abs=0.05)
    assert {len(request.pictures) for request in outside} == {0, 1}
    assert min(len(request.pictures) for request in middle if request.pictures) >= 10


def test_azure_minutes_are_burstier_than_poisson() -> None:
    requests = make_workload("azure-lmm", rate=50, seconds=400, seed=1).requests
    counts = np.histogram([request.at_s for request in requests], bins=20)[0]
    assert counts.var() / counts.mean() > 5


def test_file_holds_all_of_it(tmp_path: Path) -> None:
    workload = make_workload("mix-80-15-5", rate=2, seconds=20, seed=3)
    workload.save(tmp_path / "w.jsonl")
    assert load_workload(tmp_path / "w.jsonl") == workload


def test_pictures_are_distinct_files_of_their_size() -> None:
    first, second = make_workload("single-image", rate=1, seconds=10, seed=3).requests[:2]
    data = picture_bytes(first.pictures[0])
    assert data == picture_bytes(first.pictures[0])
    assert data != picture_bytes(second.pictures[0])
    assert Image.open(io.BytesIO(data)).size == (first.pictures[0].width, first.pictures[0].height)


@pytest.mark.parametrize("bad", [{"name": "nope"}, {"rate": 0.0}, {"seconds": -1.0}])
def test_refuses_what_it_cannot_make(bad: dict[str, object]) -> None:
    arguments: dict[str, object] = {"name": "single-text", "rate": 1.0, "seconds": 5.0, "seed": 1}
    with pytest.raises(ValueError, match="nope" if "name" in bad else next(iter(bad))):
        make_workload(**(arguments | bad))  # type: ignore[arg-type]


def test_workloads_of_one_seed_share_no_picture() -> None:
    names = ("image-burst", "azure-lmm", "share-25", "mix-80-15-5", "servegen-mm")
    pictures = [
        picture
        for name in names
        for request in make_workload(name, rate=1.0, seconds=60, seed=2).requests
        for picture in request.pictures
    ]
    assert len(pictures) > 100
    assert len(set(pictures)) == len(pictures)
