"""From trace rows to arrival records: what clients declare, what a predictor guesses, who warms up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from experiments.options import ReplayOptions
from experiments.predictions import Refresh, refresh_of
from experiments.sessions import turns_of
from tinyllm.engine.clients import Clients
from tinyllm.engine.output import OutputProcessor
from tinyllm.engine.record.workload import ArrivalRecord
from tinyllm.engine.sessions import Turn
from tinyllm.errors import InputError
from tinyllm.policy.predictor import make_predictor
from traces.prepare import prepare
from traces.schema import Trace, TraceRow

DeclaredMaxTokens = Callable[[TraceRow], int]

MOST_TOKENS = 2**31 - 1
"""What a client may declare at most: sums of such counts still fit the log's columns."""


@dataclass(frozen=True)
class Workload:
    """What a run has to serve, and how its clients behave.

    Attributes:
        records: in order of arrival; ties in file order.
        turns: the later turns of sessions, by request id.
        prefix_block_size: tokens that one prefix id stands for, None where the trace has none.
        closed: whether turns wait for the turn before them.
        client_timeout_ns: when clients give up; None if they never do.
        num_guessed_thinks: think times that are gaps between recorded starts, for want of an end.
        refresh: how predictions are made anew; None if they are not.
    """

    records: list[ArrivalRecord]
    turns: dict[str, Turn]
    prefix_block_size: int | None = None
    closed: bool = False
    client_timeout_ns: int | None = None
    num_guessed_thinks: int = 0
    refresh: Refresh | None = None

    @property
    def contains_history(self) -> bool:
        """Whether any prompt begins with an earlier turn's prompt and output."""
        return any(turn.history is not None for turn in self.turns.values())

    @property
    def shares_prefixes(self) -> bool:
        """Whether a prefix cache has anything to find."""
        return self.prefix_block_size is not None or self.contains_history

    def clients(self) -> Clients:
        """The clients of a run, at its start."""
        return Clients(self.records, self.turns if self.closed else None, self.client_timeout_ns)

    def predicting(self, outputs: OutputProcessor) -> OutputProcessor:
        """The output processor of a run, with new predictions where they are refreshed."""
        return outputs if self.refresh is None else self.refresh.wrap(outputs, self.records)


def load_trace(options: ReplayOptions, max_model_len: int | None, block_size: int) -> Trace:
    """The rows that a replay submits, after every transform, for a KV cache of `block_size`."""
    return prepare(
        options.trace,
        format=options.format,
        columns=options.columns,
        unit=options.unit,
        prefix_block_size=options.prefix_block_size,
        order=options.order,  # type: ignore[arg-type]  # checked there, with the message for the user
        window=options.window,
        zero_output=options.zero_output,  # type: ignore[arg-type]
        max_context=max_model_len,
        over_context=options.over_context,  # type: ignore[arg-type]
        head=options.requests,
        speedup=options.speedup,
        rate=options.rate,
        length_scale=options.length_scale,
        block_size=block_size,
        thin=options.thin,
        spread_ticks=options.spread_ticks,
        superpose=options.superpose,
        idle_cap=options.idle_cap,
        seed=options.seed,
    )


def build_workload(trace: Trace, options: ReplayOptions, max_model_len: int | None) -> Workload:
    """All arrival records, the turns of their sessions, and what clients do."""
    rows = list(trace.rows)
    records = _records(rows, options, max_model_len)
    elapsed_ns = {f"r{row.source_row}": row.elapsed_ns for row in rows if row.elapsed_ns is not None}
    turns = turns_of(records, elapsed_ns, options, trace.prefix_block_size)
    closed = options.sessions == "closed"
    guesses = closed and options.think_time is None
    return Workload(
        records,
        turns,
        trace.prefix_block_size,
        closed,
        slo_ns("client-timeout", options.client_timeout),
        sum(turn.after not in elapsed_ns for turn in turns.values()) if guesses else 0,
        refresh_of(options.predictor, options.seed, options.refresh_predictions),
    )


def _records(rows: list[TraceRow], options: ReplayOptions, max_model_len: int | None) -> list[ArrivalRecord]:
    declared = declared_max_tokens(options.declared_max_tokens, max_model_len)
    predict = make_predictor(options.predictor, options.seed, [max(1, row.output_tokens) for row in rows])
    ttft_slo = slo_ns("ttft-slo", options.ttft_slo)
    e2e_slo = slo_ns("e2e-slo", options.e2e_slo)
    if options.warmup_requests < 0:
        raise InputError(f"--warmup-requests {options.warmup_requests}: give 0 or more")
    records = [
        ArrivalRecord(
            request_id=f"r{row.source_row}",
            source_row=row.source_row,
            arrival_ns=row.arrival_ns,
            prompt_tokens=row.prompt_tokens,
            max_tokens=declared(row),
            target_output_tokens=max(1, row.output_tokens),
            predicted_output_tokens=predict(row.source_row, row.output_tokens) if predict else None,
            priority=row.priority,
            tenant=row.tenant,
            session=row.session,
            ttft_deadline_ns=None if ttft_slo is None else row.arrival_ns + ttft_slo,
            e2e_deadline_ns=None if e2e_slo is None else row.arrival_ns + e2e_slo,
            prefix_ids=row.prefix_ids,
            warmup=position < options.warmup_requests,
        )
        for position, row in enumerate(rows)
    ]
    if options.warmup_requests >= len(records):
        raise InputError(
            f"--warmup-requests {options.warmup_requests}: leaves none of the {len(records)} requests to measure"
        )
    return records


def slo_ns(option: str, seconds: float | None) -> int | None:
    """How long after its arrival a request is due, in ns; None where nothing is.

    Raises:
        InputError: not between 1 ns and 10⁹ s.
    """
    if seconds is None:
        return None
    if not 1e-9 <= seconds <= 1e9:
        raise InputError(f"--{option} {seconds:g}: give seconds, more than 0 and at most 1e9")
    return round(seconds * 1e9)


def declared_max_tokens(rule: str, max_model_len: int | None) -> DeclaredMaxTokens:
    """How many output tokens a client declares: `target` (the true length), `context` (all that the context
    leaves), a number, or a factor of the true length such as `1.5x`. Never less than the true length is served.

    Raises:
        InputError: none of these, or `context` without a context.
    """
    if rule == "target":
        return lambda row: max(1, row.output_tokens)
    if rule == "context":
        if max_model_len is None:
            raise InputError("--declared-max-tokens context: needs --max-model-len or --model-shape")
        context = max_model_len
        return lambda row: max(1, context - row.prompt_tokens)
    try:
        if rule.endswith("x"):
            factor = float(rule[:-1])
            if not 1 <= factor < float("inf"):
                raise ValueError
            return lambda row: max(1, round(min(factor * row.output_tokens, MOST_TOKENS)))
        number = int(rule)
        if not 1 <= number <= MOST_TOKENS:
            raise ValueError
    except ValueError:
        raise InputError(
            f"--declared-max-tokens {rule}: give target, context, a number from 1 to 2^31 - 1, "
            "or a factor of at least 1 such as 1.5x"
        ) from None
    return lambda row: number
