from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost import YARDSTICK, YARDSTICK_ENGINE_OPTIONS, LinearCostModel, StepSums, from_dict
from tinyllm.errors import InputError
from tinyllm.policy.batch import ScheduledBatch

COEFFICIENTS = st.floats(0, 10, allow_nan=False)
COUNTS = st.integers(0, 10**6)
STEPS = st.builds(StepSums, *[COUNTS] * 10)


def test_the_yardstick_is_20_ms_and_50_us_a_token() -> None:
    assert YARDSTICK.step_ns(StepSums.from_rows(decode=[500])) == 20_050_000
    assert YARDSTICK.step_ns(StepSums.from_rows(decode=[500] * 35, prefill=[(2013, 0)])) == 122_400_000


def test_the_yardstick_options_cannot_be_changed_and_name_the_engine_options() -> None:
    assert dict(YARDSTICK_ENGINE_OPTIONS) == {
        "block_size": 16,
        "num_gpu_blocks": 1_000_000,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 256,
        "enable_prefix_caching": False,
    }
    with pytest.raises(TypeError):
        YARDSTICK_ENGINE_OPTIONS["block_size"] = 32  # type: ignore[index]


def test_each_coefficient_multiplies_its_own_sum() -> None:
    model = LinearCostModel(1.0, 1e-3, 1e-6, 1e-9)
    step = StepSums.from_rows(decode=[100, 200], prefill=[(30, 10), (4, 0)])
    # 36 tokens, 4 sequences, context 300 + 40 + 4.
    assert model.step_ns(step) == 1_000_000_000 + 36_000_000 + 4_000 + 344


def test_swapped_blocks_count_by_the_direction_that_has_more() -> None:
    model = LinearCostModel(1.0, 0, 0, 0, per_swapped_block_s=1e-3)
    assert model.step_ns(StepSums(1, 1, swapped_out_blocks=3, swapped_in_blocks=5)) == 1_005_000_000


def test_a_scheduled_batch_is_a_step_shape() -> None:
    batch = ScheduledBatch()
    batch.num_tokens, batch.decode_seqs = 3, 3
    assert YARDSTICK.step_ns(batch) == 20_150_000


def test_half_a_nanosecond_rounds_up_and_a_step_takes_at_least_one() -> None:
    one = StepSums.from_rows(decode=[1])
    assert LinearCostModel(2.5e-9, 0, 0, 0).step_ns(one) == 3
    assert LinearCostModel(3.5e-9, 0, 0, 0).step_ns(one) == 4
    assert LinearCostModel(2.4999e-9, 0, 0, 0).step_ns(one) == 2
    assert LinearCostModel(0, 0, 0, 0).step_ns(one) == 1


def test_the_gap_is_zero_unless_given_and_counts_sequences() -> None:
    step = StepSums.from_rows(decode=[9, 9], prefill=[(5, 0)])
    assert YARDSTICK.gap_ns(step) == 0
    assert LinearCostModel(1, 0, 0, 0, gap_s=1e-3).gap_ns(step) == 1_000_000
    assert LinearCostModel(1, 0, 0, 0, gap_s=1e-3, gap_per_seq_s=1e-6).gap_ns(step) == 1_003_000


@given(st.tuples(*[COEFFICIENTS] * 4), STEPS)
def test_the_step_time_is_the_exact_sum_rounded_once(values: tuple[float, ...], step: StepSums) -> None:
    base, per_token, per_seq, per_context = (Fraction(repr(value)) for value in values)
    context = step.decode_context_tokens + step.prefill_context_tokens
    exact = base + per_token * step.num_tokens + per_seq * (step.decode_seqs + step.prefill_seqs)
    exact = (exact + per_context * context) * 10**9
    # A coefficient is kept to 1e-18 s, so the worst error is half of that times the counts, far below 1 ns.
    assert abs(LinearCostModel(*values).step_ns(step) - max(exact, 1)) <= Fraction(51, 100)


@given(st.tuples(*[COEFFICIENTS] * 7), STEPS)
def test_the_terms_add_up_and_the_record_gives_the_model_back(
    values: tuple[float, ...], step: StepSums
) -> None:
    model = LinearCostModel(*values)
    total = sum(model.breakdown(step).values())
    assert model.step_ns(step) / 1e9 == pytest.approx(total, rel=1e-12, abs=2e-9)
    assert from_dict(model.describe()) == model


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e-9])
def test_a_coefficient_that_is_no_time_is_refused_by_name(value: float) -> None:
    with pytest.raises(InputError, match="per_seq_s"):
        LinearCostModel(1, 0, value, 0)
