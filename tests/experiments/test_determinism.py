"""One seed, one log: in one process, in another one, and whatever the hash seed is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.options import ReplayOptions
from experiments.replay import replay
from tinyllm.engine.record.schema import TABLES
from tinyllm.policy.registry import POLICIES

REPLAY_EACH = """
import sys
from pathlib import Path
from experiments.options import ReplayOptions
from experiments.replay import replay

trace, out, *policies = sys.argv[1:]
for policy in policies:
    replay(ReplayOptions(
        trace=Path(trace), out=Path(out) / policy, policy=policy, predictor="lognormal:0.5", ttft_slo=0.2, seed=3,
        cost_model="yardstick", block_size=4, num_gpu_blocks=24, max_num_seqs=5,
    ))
"""
CHANGING = {"started", "ended", "run_time_s"}


def tables(run: Path) -> dict[str, bytes]:
    files = [path for name in TABLES for path in (run / name).iterdir()]
    return {str(path.relative_to(run)): path.read_bytes() for path in [*files, run / "workload.parquet"]}


def lasting(run: Path) -> dict[str, Any]:
    manifest = json.loads((run / "manifest.json").read_text())
    return {key: value for key, value in manifest.items() if key not in CHANGING}


def test_equal_seeds_give_byte_for_byte_equal_logs_in_processes_of_other_hash_seeds(
    shared_prefixes: Path, tmp_path: Path
) -> None:
    for hash_seed in ("1", "4242"):
        command = [
            sys.executable,
            "-c",
            REPLAY_EACH,
            str(shared_prefixes),
            str(tmp_path / hash_seed),
            *POLICIES,
        ]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        subprocess.run(command, env=environment, check=True, timeout=120)
    for policy in POLICIES:
        first, second = (tmp_path / hash_seed / policy for hash_seed in ("1", "4242"))
        assert tables(first) == tables(second)
        assert lasting(first) == lasting(second)


def test_another_seed_gives_other_predictions_and_another_schedule(
    shared_prefixes: Path, tmp_path: Path
) -> None:
    pool = {"block_size": 4, "num_gpu_blocks": 24, "max_num_seqs": 5}
    logs = []
    for seed in (3, 4):
        out = tmp_path / str(seed)
        how = {"policy": "srpt", "predictor": "lognormal:0.5", "seed": seed}
        replay(ReplayOptions(trace=shared_prefixes, out=out, cost_model="yardstick", **how, **pool))
        logs.append(tables(out))
    first, second = logs
    assert first["workload.parquet"] != second["workload.parquet"]
    assert first["events/part-00000.parquet"] != second["events/part-00000.parquet"]
