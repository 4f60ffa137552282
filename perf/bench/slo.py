"""What a class is promised, from the monolith's own figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perf.baselines.arms import MONOLITH
from perf.bench import plan
from perf.bench.store import CALIBRATION_SEED, Store
from perf.load import OK, Record, answered, load_run


@dataclass(frozen=True)
class Slo:
    """`plan.SLO_FACTOR` times what the monolith needs when it has nothing else to do."""

    ttft_s: dict[str, float]  # by modality; of one picture, and pro rata for more
    gap_s: float  # between tokens, mean of a request

    def kept(self, record: Record) -> bool:
        """Whether this request was served as promised."""
        if record.outcome != OK or record.ttft_s is None:
            return False
        return record.ttft_s <= self.ttft_slo_s(record) and record.token_s <= self.gap_s

    def ttft_slo_s(self, record: Record) -> float:
        """A request with many pictures has the time of as many."""
        text_s, image_s = self.ttft_s["text"], self.ttft_s["image"]
        return text_s if not record.pictures else text_s + record.pictures * max(0.0, image_s - text_s)


def isolated_slo(store: Store) -> Slo:
    """From the monolith, one request at a time."""
    runs = {
        name.removeprefix("single-"): load_run(store.run(f"isolated-{name}", CALIBRATION_SEED, MONOLITH))
        for name in plan.KINDS
    }
    ttft = {
        kind: plan.SLO_FACTOR * float(np.median([r.ttft_s for r in answered(run.records) if r.ttft_s is not None]))
        for kind, run in runs.items()
    }
    # means, as in `kept`: a piece of text that comes right behind another makes a median of gaps meaningless
    gaps = [record.token_s for record in answered(runs["text"].records) if record.gaps_s]
    return Slo(ttft, plan.SLO_FACTOR * float(np.median(gaps)))
