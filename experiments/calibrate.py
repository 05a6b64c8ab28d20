"""A linear cost model from the steps of recorded runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.cost import LinearCostModel
from tinyllm.engine.record.reader import Run
from tinyllm.errors import InputError


def fit_linear(runs: Sequence[Run]) -> LinearCostModel:
    """Fit `base_s`, `per_token_s` and `per_seq_s` to the steps' durations, and `gap_s` to their mean gap.

    Non-negative least squares of the relative error (Lawson and Hanson 1974), so that a short step counts as
    much as a long one. The fit knows nothing of context lengths, which a small model hardly feels.

    Raises:
        InputError: fewer than 10 steps, or SciPy is missing.
    """
    try:
        from scipy.optimize import nnls
    except ModuleNotFoundError:
        raise InputError("a fit needs SciPy: pip install 'tinyllm[calibrate]'") from None
    steps = [run.steps for run in runs]
    if sum(map(len, steps)) < 10:
        raise InputError("a fit needs at least 10 steps: calibrate on longer runs")

    def column(*names: str) -> np.ndarray:
        return np.concatenate([sum(frame[name].to_numpy(dtype=float) for name in names) for frame in steps])

    duration = column("end") - column("start")
    features = np.stack(
        [
            np.ones_like(duration),
            column("prefill_tokens", "decode_tokens"),
            column("prefill_seqs", "decode_seqs"),
        ],
        axis=1,
    )
    (base, per_token, per_seq), _ = nnls(features / duration[:, None], np.ones_like(duration))
    return LinearCostModel(
        base_s=float(base),
        per_token_s=float(per_token),
        per_seq_s=float(per_seq),
        per_context_token_s=0.0,
        gap_s=float(column("gap_s").mean()),
    )
