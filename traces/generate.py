"""Synthetic traces: an arrival process and sampled lengths, from one seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tinyllm.errors import InputError
from traces.arrivals import MOST_CV, ArrivalModel, Gamma
from traces.lengths import LengthModel, LogNormal, Tokens, Zipf
from traces.schema import Provenance, Trace, TraceRow


@dataclass(frozen=True)
class RequestClass:
    """A share of the requests with a tenant and length distributions of its own (prompt, output independent)."""

    share: float
    prompt: LengthModel
    output: LengthModel
    tenant: str | None = None


@dataclass(frozen=True)
class Preset:
    """A named workload.

    Attributes:
        about: one line for lists of presets.
        rate: mean arrivals a second.
        cv: coefficient of variation of the gaps: 0 even, 1 Poisson, above 1 bursty.
        classes: their shares add up to 1.
    """

    about: str
    rate: float
    cv: float
    classes: tuple[RequestClass, ...]


# Shares: rows of BurstGPT file 1 with a response, by model. Lengths: Zipf laws (the authors' model, with
# Mandelbrot's shift) fitted by least squares to the published prompt and output mean, median and p95 of the
# head of file 1 and to the published means of GPT-4; docs/traces.md has the table of what they give.
_GPT4_SHARE: Final = 215_127 / (215_127 + 1_189_167)
_BURSTGPT: Final = (
    RequestClass(1 - _GPT4_SHARE, Zipf(1.8005, 40.16, 11_500), Zipf(1.8244, 7.146, 7_315), "ChatGPT"),
    RequestClass(_GPT4_SHARE, Zipf(6.0, 3_073.0, 11_500), Zipf(3.0, 383.5, 7_315), "GPT-4"),
)

PRESETS: Final[dict[str, Preset]] = {
    "burstgpt-like": Preset(
        "Gamma arrivals of the BurstGPT authors, lengths and tenants as in its file 1",
        1.0,
        math.sqrt(2),
        _BURSTGPT,
    ),
    "burstgpt-generator": Preset(
        "defaults of the BurstGPT authors' generator: Gamma(0.5, 2 s), Zipf 1.1 under 1,024 tokens",
        1.0,
        math.sqrt(2),
        (RequestClass(1.0, Zipf(1.1, 0.0, 1_023), Zipf(1.1, 0.0, 1_023)),),
    ),
    "poisson": Preset(
        "Poisson arrivals, lognormal lengths: a plain baseline",
        1.0,
        1.0,
        (RequestClass(1.0, LogNormal(512, 1.0), LogNormal(128, 1.0)),),
    ),
}

CHUNK_ROWS: Final = 65_536
"""Rows that are Python objects at one time: these take ten times the memory of the arrays."""


def generate(
    preset: str = "burstgpt-like",
    *,
    requests: int,
    seed: int,
    rate: float | None = None,
    cv: float | None = None,
    arrivals: ArrivalModel | None = None,
    prompt: LengthModel | None = None,
    output: LengthModel | None = None,
    failure_share: float = 0.0,
) -> Trace:
    """A trace of `requests` rows, the first at 0; equal arguments give equal rows.

    Arrivals, tenants, prompts, outputs and failures draw from streams of their own: changing one of them
    leaves the others as they were.

    Args:
        preset: a name of `PRESETS`.
        rate, cv: of the Gamma arrivals, in place of the preset's.
        arrivals: another process in place of the Gamma one, at the same rate.
        prompt, output: a distribution in place of those of the preset's classes.
        failure_share: share of rows whose output is 0, as in the traced services.

    Raises:
        InputError: an unknown preset, a number out of range, both `cv` and `arrivals`.
    """
    if preset not in PRESETS:
        raise InputError(f"--preset: unknown preset {preset!r}; the presets are {', '.join(PRESETS)}")
    chosen = PRESETS[preset]
    rate = chosen.rate if rate is None else rate
    if arrivals is not None and cv is not None:
        raise InputError("--cv is of the Gamma arrivals; with --arrivals write it there, as in weibull:cv=2")
    if cv is not None and not 0 <= cv <= MOST_CV:
        raise InputError(f"--cv: {cv:g} is not between 0 (even) and {MOST_CV:g}; 1 is Poisson")
    process = arrivals or Gamma(chosen.cv if cv is None else cv)
    check_numbers(requests, seed, rate, failure_share)
    streams = [np.random.Generator(np.random.PCG64(child)) for child in np.random.SeedSequence(seed).spawn(5)]
    arrivals_ns = process.sample(streams[0], requests, rate)
    classes = chosen.classes
    members = streams[1].choice(len(classes), size=requests, p=[each.share for each in classes])
    prompts = _lengths(streams[2], members, [prompt or each.prompt for each in classes])
    outputs = _lengths(streams[3], members, [output or each.output for each in classes])
    outputs[streams[4].random(requests) < failure_share] = 0
    arguments = {"preset": preset, "requests": requests, "seed": seed, "rate": rate}
    entry = {"name": "generate", **arguments, "arrivals": repr(process), "failure_share": failure_share}
    entry |= {"prompt": repr(prompt) if prompt else None, "output": repr(output) if output else None}
    provenance = Provenance(source=f"generated:{preset}", format="generated", transforms=[entry])
    tenants = [each.tenant for each in classes]
    return Trace(_rows((arrivals_ns, prompts, outputs, members), tenants, provenance), provenance)


def _lengths(rng: np.random.Generator, members: NDArray[np.int64], models: list[LengthModel]) -> Tokens:
    lengths = np.empty(len(members), dtype=np.int64)
    for index, model in enumerate(models):
        mine = members == index
        lengths[mine] = model.sample(rng, int(mine.sum()))
    return lengths


def _rows(
    columns: tuple[NDArray[np.int64], ...], tenants: list[str | None], provenance: Provenance
) -> Iterator[TraceRow]:
    """Rows of `columns`: arrivals in ns, prompts, outputs, numbers of tenants."""
    for start in range(0, len(columns[0]), CHUNK_ROWS):
        chunk = zip(*(column[start : start + CHUNK_ROWS].tolist() for column in columns), strict=True)
        for index, (arrival_ns, prompt_tokens, output_tokens, member) in enumerate(chunk, start):
            provenance.rows_in += 1
            provenance.rows_out += 1
            yield TraceRow(index, arrival_ns, prompt_tokens, output_tokens, tenants[member])


def check_numbers(requests: int, seed: int, rate: float, failure_share: float = 0.0) -> None:
    """Raise `InputError` for what no generator can take."""
    if requests < 1:
        raise InputError(f"--requests: {requests} is not a number of requests; give 1 or more")
    if seed < 0:
        raise InputError(f"--seed: {seed} is negative; give 0 or more")
    if not math.isfinite(rate) or rate <= 0:
        raise InputError(f"--rate: {rate:g} is not a finite rate above 0; give requests a second")
    if not 0 <= failure_share < 1:
        raise InputError(f"--failure-share: {failure_share:g} is not a share in [0, 1)")
