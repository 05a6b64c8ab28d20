"""Random worlds: a small configuration, the requests that arrive and are aborted, and their hidden lengths."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from tinyllm.conformance.stepper import STEP_NS, Stepper
from tinyllm.policy import SchedulingPolicy

MOST_IDLE_STEPS = 24
"""Steps in which nothing can run and nobody is to come before a world is left: they double, 4 hours in all."""


class Arrival(NamedTuple):
    """A request of a world.

    Attributes:
        step: before which step it arrives.
        output: its true output length; a policy sees `max_tokens` only.
        other_output: another true length, for a second run that must look the same until one of them ends.
        abort_step: before which step the client gives up, or None.
        fields: all else of the request, `max_tokens` included.
    """

    name: str
    step: int
    prompt: int
    output: int
    other_output: int
    abort_step: int | None
    fields: dict[str, Any]


class World(NamedTuple):
    """A configuration (fields of SchedulerConfig) and the arrivals, in order of their steps."""

    config: dict[str, Any]
    arrivals: list[Arrival]

    @classmethod
    def draw(cls, rng: Random, *, most_requests: int = 30, may_preempt: bool = True) -> World:
        """A world of tiny pools and budgets, in which everything happens often.

        Args:
            may_preempt: False also draws `--preemption never`, which excludes preemptive policies.
        """
        config = _draw_config(rng, may_preempt)
        arrivals: list[Arrival] = []
        step = 0
        while len(arrivals) < most_requests and (not arrivals or rng.randrange(20)):
            step += rng.choice([0, 0, 1, 2, 5])
            arrivals.append(_draw_arrival(rng, f"r{len(arrivals)}", step, config))
        return cls(config, arrivals)

    @classmethod
    def draw_twins(cls, rng: Random, *, most_requests: int = 10) -> World:
        """A stream of requests that nothing tells apart but their arrival, more than the one seat can serve."""
        prompt, output = rng.randint(1, 8), rng.randint(1, 8)
        config = {"block_size": 4, "num_gpu_blocks": 8, "max_num_seqs": 1, "max_num_batched_tokens": 8}
        fields = {"max_tokens": output, "predicted_output_tokens": rng.choice([None, output])}
        gap = rng.randint(1, output)
        arrivals = [
            Arrival(f"r{i}", gap * i, prompt, output, output, None, fields)
            for i in range(rng.randint(2, most_requests))
        ]
        return cls(config, arrivals)

    def with_other_outputs(self) -> World:
        """The same for every policy to see, with the other hidden lengths."""
        return self._replace(arrivals=[a._replace(output=a.other_output) for a in self.arrivals])

    @property
    def most_steps(self) -> int:
        """Four times what one request after another takes with a token a step: whoever needs more goes round."""
        work = sum(arrival.prompt + arrival.output for arrival in self.arrivals)
        return self.arrivals[-1].step + 4 * work + MOST_IDLE_STEPS

    def run(
        self,
        policy: str | SchedulingPolicy,
        before_step: Callable[[Stepper], None] | None = None,
        most_steps: int | None = None,
    ) -> Stepper:
        """Run until all have ended, all are held for hours, or `most_steps` are over."""
        stepper = Stepper(policy, **self.config)
        left, idle_steps = list(self.arrivals), 0
        for number in range(self.most_steps if most_steps is None else most_steps):
            while left and left[0].step <= number:
                arrival = left.pop(0)
                stepper.add(arrival.name, arrival.prompt, arrival.output, **arrival.fields)
            for arrival in self.arrivals:
                if arrival.abort_step == number:
                    stepper.abort(arrival.name)
            if not left and not stepper.scheduler.num_unfinished:
                break
            if before_step is not None:
                before_step(stepper)
            # A request may be held until its time comes: with nobody else to come, let time pass faster.
            idle_steps = 0 if stepper.step().rows or left else idle_steps + 1
            stepper.now += (1_000_000 << idle_steps) if idle_steps else 0
            if idle_steps >= MOST_IDLE_STEPS:
                break
        return stepper


def _draw_config(rng: Random, may_preempt: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        "block_size": rng.choice([1, 2, 4]),
        "num_gpu_blocks": rng.randint(4, 16),
        "max_num_seqs": rng.randint(1, 6),
        "max_num_batched_tokens": rng.randint(1, rng.choice([6, 40])),
        "long_prefill_token_threshold": rng.choice([0, 0, 1, 3, 8]),
        "enable_chunked_prefill": rng.randrange(5) < 4,
        "enable_prefix_caching": rng.randrange(2) == 1,
        "admission": rng.choice(["first-chunk", "full-prompt", "reserve-output"]),
        "watermark": rng.choice([0.0, 0.0, 0.1, 0.3]),
        "max_model_len": rng.choice([None, 30]),
    }
    if config["admission"] == "reserve-output" and not may_preempt:
        config["preemption"] = "never"
    if rng.randrange(2):
        config |= _draw_rules(rng, config, may_preempt)
    return config


def _draw_rules(rng: Random, config: dict[str, Any], may_preempt: bool) -> dict[str, Any]:
    """Rules beyond the defaults: of what a step mixes, whom it turns away and where victims go."""
    rules: dict[str, Any] = {
        "batching": rng.choice(["mixed", "prefill-first"] + ["static"] * (not may_preempt)),
        "max_num_decode_tokens": rng.choice([None, None, 1, 2]),
        "max_queued_requests": rng.choice([None, None, 3]),
        "early_rejection": rng.choice(["none", "expired", "predicted"]),
        "step_estimate": rng.choice(["0.001:0", "0.0002:0.0001:0.0001:0.00001"]),
    }
    if config["enable_chunked_prefill"]:
        rules["max_num_prefill_tokens"] = rng.choice([None, 1, 5])
        rules["max_num_partial_prefills"] = rng.choice([None, 1, 2])
        rules["tpot_slo"] = rng.choice([None, 0.001, 0.002])
    if not config["enable_prefix_caching"] and "preemption" not in config and rng.randrange(2):
        rules |= {"preemption": "swap", "num_cpu_blocks": rng.choice([2, 8, 100])}
    return rules


def _draw_arrival(rng: Random, name: str, step: int, config: dict[str, Any]) -> Arrival:
    # Most fit, so that they compete for the pool; a few are refused.
    room = config["num_gpu_blocks"] * config["block_size"]
    if not config["enable_chunked_prefill"]:
        room = min(room, config["max_num_batched_tokens"])
    prompt, output = rng.randint(1, max(1, room // 2)), rng.randint(1, max(1, room // 2))
    max_tokens = output + rng.choice([0, 0, 4])
    fields: dict[str, Any] = {
        "max_tokens": max_tokens,
        "priority": rng.randint(0, 3),
        "tenant": rng.choice([None, "x", "y"]),
        "predicted_output_tokens": rng.choice([None, 1, 2, 3, 4, 5, 12]),
    }
    if config["enable_prefix_caching"]:
        content = "".join(rng.choice("ab") for _ in range(prompt // config["block_size"]))
        # Chained: the hash of a block is all the content up to its end.
        fields["block_hashes"] = [content[: i + 1] for i in range(len(content))]
    if rng.randrange(3) == 2:
        fields["ttft_deadline"] = STEP_NS * (step + rng.choice([0, 2, 5, 20]))
    abort_step = step + rng.randint(0, 12) if rng.randrange(20) == 19 else None
    return Arrival(name, step, prompt, output, rng.randint(1, max_tokens), abort_step, fields)
