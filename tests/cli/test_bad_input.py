"""A user's mistake is one line that names it and the mend, exit code 2, and nothing written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
ROOFLINE = ("--gpu", "h100", "--model-shape", "llama-3.1-8b")

WRONG_OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown policy": (("--policy", "best"), "--policy best: unknown; choose fcfs"),
    "unknown module": (("--policy", "nowhere:Mine"), "no module 'nowhere'"),
    "no policy class": (("--policy", "json:JSONDecoder"), "extends SchedulingPolicy"),
    "policy without a name": (("--policy", ":"), "--policy :"),
    "policy argument unknown": (("--policy-arg", "x=1"), "--policy-arg"),
    "policy argument of a wrong type": (
        ("--policy", "vtc", "--policy-arg", "input_weight=NaN"),
        "input_weight",
    ),
    "policy argument without value": (("--policy-arg", "weight"), "write key=value"),
    "unknown mode": (("--mode", "dream"), "--mode dream"),
    "unknown predictor": (("--predictor", "oracle"), "choose none, perfect"),
    "predictor's parameter": (("--predictor", "lognormal:nan"), "lognormal:nan"),
    "predictor's noise beyond numbers": (("--predictor", "lognormal:1e308"), "lognormal"),
    "predictor's second parameter": (("--predictor", "buckets:64:2"), "--predictor buckets:64:2"),
    "SLO of nothing": (("--ttft-slo", "0"), "--ttft-slo 0: give seconds"),
    "sessions": (("--sessions", "x"), "--sessions x: unknown; choose open or closed"),
    "closed without sessions": (("--sessions", "closed"), "--sessions closed: the trace has no sessions"),
    "think time of open sessions": (("--think-time", "1"), "--think-time 1: only --sessions closed"),
    "think time negative": (
        ("--sessions", "closed", "--think-time", "-1"),
        "--think-time -1: give seconds",
    ),
    "think time NaN": (("--sessions", "closed", "--think-time", "nan"), "--think-time nan: give seconds"),
    "timeout of nothing": (("--client-timeout", "0"), "--client-timeout 0: give seconds"),
    "timeout NaN": (("--client-timeout", "nan"), "--client-timeout nan: give seconds"),
    "declared zero": (("--declared-max-tokens", "0"), "--declared-max-tokens 0"),
    "declared beyond the log": (("--declared-max-tokens", "9" * 20), "--declared-max-tokens 99"),
    "declared context without one": (("--declared-max-tokens", "context"), "needs --max-model-len"),
    "declared factor below one": (("--declared-max-tokens", "0.5x"), "a factor of at least 1"),
    "no requests": (("--requests", "0"), "0"),
    "negative requests": (("--requests", "-3"), "-3"),
    "requests is no number": (("--requests", "many"), "--requests"),
    "requests is no whole number": (("--requests", "1.5"), "--requests"),
    "window backwards": (("--window", "5:1"), "'5:1' is empty"),
    "window of nothing": (("--window", "100:200"), "no row is left"),
    "window is no window": (("--window", "monday"), "write for instance 600:900"),
    "speed-up negative": (("--speedup", "-1"), "speedup"),
    "speed-up infinite": (("--speedup", "inf"), "speedup"),
    "speed-up NaN": (("--speedup", "nan"), "speedup"),
    "rate zero": (("--rate", "0"), "rate"),
    "rate and speed-up": (("--rate", "2", "--speedup", "2"), "give one of them"),
    "order": (("--order", "random"), "--order"),
    "zero output": (("--zero-output", "maybe"), "--zero-output"),
    "over context, unknown": (("--over-context", "maybe"), "--over-context"),
    "format": (("--format", "xml"), "--format"),
    "unit": (("--unit", "weeks"), "--unit"),
    "warm-up negative": (("--warmup-requests", "-1"), "--warmup-requests -1"),
    "warm-up takes all": (("--warmup-requests", "4"), "leaves none of the 4 requests"),
    "length scale zero": (("--length-scale", "0"), "--length-scale"),
    "lag NaN": (("--max-lag-share", "nan"), "--max-lag-share nan"),
    "no blocks": (("--num-gpu-blocks", "0"), "--num-gpu-blocks 0"),
    "blocks beyond the log": (("--num-gpu-blocks", "9" * 26), "--num-gpu-blocks 99"),
    "block size": (("--block-size", "-16"), "--block-size -16"),
    "no seats": (("--max-num-seqs", "0"), "--max-num-seqs 0"),
    "no budget": (("--max-num-batched-tokens", "0"), "--max-num-batched-tokens 0"),
    "context of one": (("--max-model-len", "1"), "max-model-len"),
    "context of zero": (("--max-model-len", "0"), "max-model-len"),
    "threshold negative": (("--long-prefill-token-threshold", "-1"), "--long-prefill-token-threshold -1"),
    "watermark of one": (("--watermark", "1"), "--watermark 1"),
    "watermark NaN": (("--watermark", "nan"), "--watermark nan"),
    "admission": (("--admission", "vip"), "--admission vip"),
    "preemption": (("--preemption", "polite"), "--preemption polite"),
    "never without reserve": (("--preemption", "never"), "--admission reserve-output"),
    "two devices": (ROOFLINE, "give one of them"),
    "every request refused": (("--max-model-len", "5"), "every request would be refused"),
    "unknown option": (("--polcy", "fcfs"), "No such option"),
    "option without value": (("--policy",), "--policy"),
    "line ends in a value": (("--policy", "a\nb"), "unknown"),
}


@pytest.mark.parametrize("mistake", WRONG_OPTIONS)
def test_a_wrong_option_is_one_line_and_leaves_nothing_behind(
    replay: Command, tmp_path: Path, mistake: str
) -> None:
    arguments, message = WRONG_OPTIONS[mistake]
    before = sorted(tmp_path.iterdir())
    ended = replay(*arguments)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("tinyllm: ") and ended.err.count("\n") == 1, ended.err
    assert message in ended.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--mode sim needs a device"),
        (["--gpu", "h100"], "--mode sim needs a device"),
        (["--gpu", "abacus", "--model-shape", "llama-3.1-8b"], "unknown GPU 'abacus'"),
        (["--gpu", "h100", "--model-shape", "llama-9"], "llama-9"),
        (["--gpu", "h100", "--model-shape", "llama-3.1-70b"], "does not fit"),
        ([*ROOFLINE, "--gpu-memory-utilization", "nan"], "nan"),
        ([*ROOFLINE, "--tp", "0"], "0"),
        ([*ROOFLINE, "--tp", "3"], "3"),
        ([*ROOFLINE, "--dtype", "fp4"], "fp4"),
        (["--cost-model", "no/such.json"], "no/such.json"),
        (["--cost-model", "wrong.json", "--num-gpu-blocks", "100"], "wrong.json"),
        (["--cost-model", "linear.json"], "--num-gpu-blocks"),
    ],
)
def test_a_wrong_device_is_one_line(
    tinyllm_command: Command, trace: list[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "wrong.json").write_text('{"kind": "linear", "base_s": -1}')
    (tmp_path / "linear.json").write_text(
        '{"kind": "linear", "base_s": 0.02, "per_token_s": 0, "per_seq_s": 0, "per_context_token_s": 0}'
    )
    ended = tinyllm_command("replay", *trace, "--out", "run", *arguments)
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert message in ended.err
    assert not Path("run").exists()


BROKEN_TRACES = {
    "missing.csv": (None, "missing.csv"),
    "empty.csv": ("", "empty.csv"),
    "header_only.csv": ("arrival_s,prompt_tokens,output_tokens\n", "no data row"),
    "other_header.csv": ("when,in,out\n0,1,1\n", "'arrival_s'"),
    "half.csv": ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,many,1\n", "'many'"),
    "nan.csv": ("arrival_s,prompt_tokens,output_tokens\nnan,1,1\n", "nan"),
    "blank.csv": ("arrival_s,prompt_tokens,output_tokens\n,1,1\n", "arrival_s"),
    "negative.csv": ("arrival_s,prompt_tokens,output_tokens\n0,-1,1\n", "-1"),
    "fraction.csv": ("arrival_s,prompt_tokens,output_tokens\n0,1,12.5\n", "12.5"),
    "backwards.csv": ("arrival_s,prompt_tokens,output_tokens\n5,1,1\n4,1,1\n", "--order"),
    "all_failed.csv": ("arrival_s,prompt_tokens,output_tokens\n0,9,0\n1,9,0\n", "no row is left"),
    "all_too_long.csv": ("arrival_s,prompt_tokens,output_tokens\n0,1000000000,5\n", "every request"),
    "binary.csv": ("arrival_s,prompt_tokens,output_tokens\n\x00\x01\x02", "binary.csv"),
    "trace.parquet": ("this is no parquet", "trace.parquet"),
}


@pytest.mark.parametrize("name", BROKEN_TRACES)
def test_a_broken_trace_is_one_line_that_names_the_file_and_nothing_is_replayed(
    tinyllm_command: Command, trace: list[str], tmp_path: Path, name: str
) -> None:
    text, message = BROKEN_TRACES[name]
    if text is not None:
        (tmp_path / name).write_text(text)
    arguments = ["--columns", trace[2], "--unit", "s", "--cost-model", "yardstick", "--out", "run"]
    ended = tinyllm_command("replay", name, *arguments, "--num-gpu-blocks", 1000)
    assert (ended.status, ended.err.count("\n")) == (2, 1), ended.err
    assert message in ended.err
    assert not Path("run").exists()


def test_a_directory_in_place_of_a_trace_is_one_line(tinyllm_command: Command, tmp_path: Path) -> None:
    ended = tinyllm_command("replay", tmp_path, "--cost-model", "yardstick", "--out", "run")
    assert (ended.status, ended.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("report",),
        ("report", "nowhere"),
        ("report", "trace.csv"),
        ("trace", "info", "nowhere.csv"),
        ("trace", "generate", "--requests", "0", "--out", "out.csv"),
        ("trace", "generate", "--rate", "nan", "--out", "out.csv"),
        ("trace", "generate", "--rate", "1e-300", "--out", "out.csv"),
        ("trace", "generate", "--out", "out.xml"),
        ("trace", "generate", "--out", "nowhere/out.csv"),
        ("trace", "generate", "--out", "trace.csv"),
        ("trace", "window", "trace.csv", "5:1", "--out", "out.csv"),
        ("cost", "--gpu", "abacus", "--model-shape", "llama-3.1-8b"),
        ("cost", "--tp", "0"),
        ("doctor", "now"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_mistakes_in_the_other_commands_are_one_line_too(
    tinyllm_command: Command, trace: list[str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    ended = tinyllm_command(*arguments)
    assert (ended.status, ended.err.count("\n")) == (2, 1), ended.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_block_size_of_nothing_is_refused_by_trace_info(tinyllm_command: Command, trace: list[str]) -> None:
    ended = tinyllm_command("trace", "info", *trace, "--block-size", 0)
    assert (ended.status, ended.err.count("\n")) == (2, 1)


def test_some_refused_requests_are_rows_with_a_reason_and_the_run_is_complete(replay: Command) -> None:
    from tinyllm.engine.record.reader import read_run

    assert replay("--num-gpu-blocks", 8).status == 0
    requests = read_run("run").requests.set_index("source_row")
    assert requests["finish_reason"].tolist().count("rejected") == 1
    assert requests.loc[1, "error"] == "needs 15 KV blocks for 239 tokens, the pool has 8"


class TestOut:
    """`--out` never destroys what it did not write."""

    def test_a_file_is_refused(self, replay: Command, tmp_path: Path) -> None:
        (tmp_path / "run").write_text("mine")
        for force in ((), ("--force",)):
            ended = replay(*force)
            assert ended.status == 2 and "is a file" in ended.err
        assert (tmp_path / "run").read_text() == "mine"

    def test_a_run_is_kept_without_force_and_replaced_with_it(self, replay: Command, tmp_path: Path) -> None:
        assert replay().status == 0
        stale = tmp_path / "run" / "steps" / "part-00099.parquet"
        stale.write_bytes(b"of an older, longer run")
        ended = replay("--policy", "srpt")
        assert ended.status == 2 and "--force" in ended.err
        assert stale.exists()
        assert replay("--policy", "srpt", "--force").status == 0
        assert not stale.exists()

    def test_force_keeps_its_hands_off_a_folder_with_something_else(
        self, replay: Command, tmp_path: Path
    ) -> None:
        assert replay().status == 0
        (tmp_path / "run" / "thesis.tex").write_text("years of work")
        ended = replay("--force")
        assert ended.status == 2 and "'thesis.tex'" in ended.err
        assert (tmp_path / "run" / "manifest.json").exists()
        assert (tmp_path / "run" / "thesis.tex").read_text() == "years of work"

    @pytest.mark.parametrize("place", ["steps/notes.txt", "steps/part-00000.parquet/notes.txt", "events"])
    def test_force_finds_what_is_not_ours_below_a_name_that_is(
        self, replay: Command, tmp_path: Path, place: str
    ) -> None:
        note = tmp_path / "run" / place
        note.parent.mkdir(parents=True)
        note.write_text("years of work")
        ended = replay("--force")
        assert (ended.status, ended.err.count("\n")) == (2, 1)
        assert note.read_text() == "years of work"

    def test_force_follows_no_link_out_of_the_run(self, replay: Command, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "part-00000.parquet").write_text("years of work")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "steps").symlink_to(tmp_path / "elsewhere")
        assert replay("--force").status == 2
        assert (tmp_path / "elsewhere" / "part-00000.parquet").exists()

    def test_hidden_files_stay_and_what_a_kill_left_goes(self, replay: Command, tmp_path: Path) -> None:
        assert replay(out="steps").status == 0
        (tmp_path / "steps" / ".notes").write_text("years of work")
        half = tmp_path / "steps" / "events" / ".part-00007.parquet.tmp"
        half.write_text("half a part")
        assert replay("--force", out="steps").status == 0
        assert (tmp_path / "steps" / ".notes").exists() and not half.exists()

    def test_a_wrong_option_with_force_leaves_the_old_run_as_it_was(
        self, replay: Command, tmp_path: Path
    ) -> None:
        assert replay().status == 0
        before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
        assert replay("--force", "--watermark", "2").status == 2
        assert replay("--force", "--max-model-len", "5").status == 2
        assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before

    def test_a_path_below_a_file_is_one_line(self, replay: Command, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        ended = replay(out="file/run")
        assert (ended.status, ended.err.count("\n")) == (2, 1)

    @pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unwritable for root")
    def test_an_unwritable_folder_is_one_line(self, replay: Command, tmp_path: Path) -> None:
        (tmp_path / "locked").mkdir(mode=0o500)
        ended = replay(out="locked/run")
        assert (ended.status, ended.err.count("\n")) == (2, 1)

    def test_a_name_that_no_file_system_takes_is_one_line(self, replay: Command) -> None:
        ended = replay(out="x" * 300)
        assert (ended.status, ended.err.count("\n")) == (2, 1)
