"""The last part of `make demo`: a few requests on a real model, and the same requests simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from analysis.summary import summarize
from analysis.table import print_summaries
from experiments.calibrate import fit_linear
from experiments.options import ReplayOptions
from experiments.progress import terminal_progress
from experiments.replay import replay
from experiments.resim import resimulate
from tinyllm.engine.record.reader import Run, read_run
from tinyllm.errors import IncompleteRunError, InputError

MODEL_NAME = "smollm2-135m"
REQUESTS, RATE, LENGTH_SCALE = 16, 2.0, 0.05


def real_part(trace: Path, out: Path, models: Path, seed: int) -> None:
    """Replay the head of the demo's trace on a real model, re-simulate it, and simulate it on a fitted device;
    say what was skipped, and why, where there is no checkpoint.

    Raises:
        IncompleteRunError: the re-simulation differs from the run.
    """
    print()
    try:
        model = find_model(models)
    except InputError as error:
        print(f"Real model: skipped. {error}")
        return
    print(f"Real model: {REQUESTS} requests, lengths times {LENGTH_SCALE:g}, {RATE:g}/s, on {model}")
    options = ReplayOptions(
        trace=trace,
        out=out / "real",
        mode="real",
        model=model,
        requests=REQUESTS,
        rate=RATE,
        length_scale=LENGTH_SCALE,
        num_gpu_blocks=2048,
        seed=seed,
        force=True,
        # A demo on a busy machine should show what it measured, not refuse it.
        max_lag_share=1.0,
    )
    replay(options, terminal_progress)
    run = read_run(options.out)
    if differences := resimulate(options.out, out / "real-resim", force=True):
        raise IncompleteRunError(f"{options.out}: the re-simulation differs: {differences[0].detail}")
    print(f"  re-simulated: every decision of {len(run.steps):,} steps is the same")
    simulated = simulate_fitted(run, options, out)
    print_summaries([summarize(run), summarize(simulated)], ["real", "simulated"])
    print("  (simulated: a linear cost model fitted to this very run, so no test of prediction)")


def simulate_fitted(run: Run, options: ReplayOptions, out: Path) -> Run:
    """The same requests, scheduled on a device whose step times are fitted to a run."""
    cost_model = out / "real-cost.json"
    cost_model.write_text(json.dumps(fit_linear([run]).describe(), indent=2) + "\n", encoding="utf-8")
    directory = out / "real-simulated"
    max_model_len = run.manifest["config"]["max_model_len"]
    replay(
        replace(options, mode="sim", out=directory, cost_model=str(cost_model), max_model_len=max_model_len)
    )
    return read_run(directory)


def find_model(models: Path) -> Path:
    """The checkpoint, downloaded where it is not there yet.

    Raises:
        InputError: torch is missing, or the checkpoint can't be had.
    """
    for package in ("torch", "safetensors", "tokenizers"):
        if find_spec(package) is None:
            raise InputError(f"{package} is not installed: pip install 'tinyllm[engine]'")
    from tinyllm.models.download import install_model

    directory = models / MODEL_NAME
    install_model(MODEL_NAME, directory, report=lambda line: print(f"  {line}"))
    return directory
