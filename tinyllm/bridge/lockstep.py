"""One world through vLLM's Scheduler and through ours, compared after every step."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tinyllm.bridge.headless import EOS, HeadlessVLLM, Scheduled
from tinyllm.bridge.pairs import Pair
from tinyllm.conformance.stepper import Step, Stepper
from tinyllm.conformance.world import Arrival, World
from tinyllm.engine.output import private_hash
from tinyllm.policy.registry import make_policy
from tinyllm.policy.request import BlockHash, RequestState

_PRIVATE: Final = 100
"""Token ids from here on belong to one request each; those below say what prompts share."""


class Difference(NamedTuple):
    """The first thing in which the two schedulers differ.

    Attributes:
        step: number of the step, from 0.
        aspect: what was compared.
    """

    step: int
    aspect: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"step {self.step}, {self.aspect}: ours {self.ours}, vLLM's {self.theirs}"


class Lockstep:
    """Drives both schedulers through the same arrivals, aborts and hidden output lengths.

    Args:
        world: its prompts share what their block hashes share; everything else is a request's own.
        pair: what is compared.
    """

    def __init__(self, world: World, pair: Pair) -> None:
        self._world = world
        self._pair = pair
        self._ours = Stepper(make_policy(pair.policy, pair.policy_args), **{**world.config, **pair.options})
        bridge = {"policy": pair.policy, "policy_args": pair.policy_args} if pair.bridged else None
        self._theirs = HeadlessVLLM(self._ours.config, pair.vllm_policy, bridge)
        self._indices = {arrival.name: index for index, arrival in enumerate(world.arrivals)}
        self._outputs: dict[str, int] = {}
        self.num_steps = 0
        self.num_preemptions = 0
        self.num_hits = 0
        self.num_aborts = 0
        self.explained: Difference | None = None

    def run(self, most_steps: int) -> Difference | None:
        """Run until all have ended, they differ, or `most_steps` are over.

        A difference that follows from blocks that vLLM caches uncomputed is kept as `explained`, and ends the run.
        """
        left = list(self._world.arrivals)
        for number in range(most_steps):
            self._theirs.scheduler.now = self._ours.now
            while left and left[0].step <= number:
                self._add(left.pop(0))
            for arrival in self._world.arrivals:
                if arrival.abort_step == number:
                    self.num_aborts += arrival.name in self._theirs.scheduler.requests
                    self._ours.abort(arrival.name)
                    self._theirs.abort(arrival.name)
            if not left and not self._ours.scheduler.num_unfinished:
                break
            difference = self._step(number)
            if difference is not None and self._theirs.scheduler.num_uncomputed_blocks:
                self.explained = difference
                return None
            if difference is not None:
                return difference
        return None

    def _add(self, arrival: Arrival) -> None:
        fields = arrival.fields | {"block_hashes": self._hashes(arrival)}
        if self._ours.add(arrival.name, arrival.prompt, arrival.output, **fields) is not None:
            return  # vLLM's engine refuses before its scheduler hears of it
        index = self._indices[arrival.name]
        limit = self._ours.config.max_model_len
        longest = fields["max_tokens"] if limit is None else min(fields["max_tokens"], limit - arrival.prompt)
        # At its limit a request ends without an EOS.
        self._outputs[arrival.name] = arrival.output if arrival.output < longest else -1
        tokens = prompt_tokens(arrival, self._ours.config.block_size, _PRIVATE + index)
        # Both break ties by arrival: let that be the order of submission.
        record = {"arrival_ns": self._ours.now}
        for name, value in fields.items():
            if name not in ("max_tokens", "block_hashes") and value is not None:
                record[f"{name}_ns" if name.endswith("_deadline") else name] = value
        self._theirs.add(
            arrival.name,
            tokens,
            fields["max_tokens"],
            priority=fields.get("priority", 0),
            arrival=float(index),
            record=record,
        )

    def _hashes(self, arrival: Arrival) -> list[BlockHash]:
        """Hashes of all full blocks of a prompt: what the world says is shared, then blocks of its own."""
        shared = arrival.fields.get("block_hashes", [])
        own = range(len(shared), arrival.prompt // self._ours.config.block_size)
        return [*shared, *(private_hash(arrival.name, block) for block in own)]

    def _step(self, number: int) -> Difference | None:
        theirs = self._schedule_theirs()
        cached = {name: self._theirs.scheduler.requests[name].num_computed_tokens for name, _ in theirs.rows}
        sampled = {
            name: self._sample(name)
            for name, computed in cached.items()
            if computed == self._theirs.scheduler.requests[name].num_tokens
        }
        ours = self._ours.step()
        self._theirs.scheduler.now = self._ours.now
        ended = self._theirs.finish(sampled)
        self.num_steps += 1
        self.num_preemptions += len(ours.preempted)
        self.num_hits += sum(self._ours.requests[name].num_cached_tokens > 0 for name in ours.admitted)
        for aspect, left, right in [
            *self._compared_step(ours, theirs, ended),
            *self._compared_state(),
        ]:
            if left != right:
                return Difference(number, aspect, left, right)
        return None

    def _schedule_theirs(self) -> Scheduled:
        """vLLM's next step that has rows. Under priority it may only preempt in a step; ours then goes on at once."""
        scheduled, victims = self._theirs.schedule(), []
        while scheduled.preempted and not scheduled.rows:
            victims += scheduled.preempted
            self._theirs.finish({})
            scheduled = self._theirs.schedule()
        return scheduled._replace(preempted=victims + scheduled.preempted)

    def _sample(self, name: str) -> int:
        last = self._theirs.scheduler.requests[name].num_output_tokens + 1 == self._outputs[name]
        return EOS if last else _PRIVATE + self._indices[name]

    def _compared_step(self, ours: Step, theirs: Scheduled, ended: list[str]) -> list[tuple[str, Any, Any]]:
        cached = [(name, self._ours.requests[name].num_cached_tokens) for name in ours.admitted]
        return [
            ("victims", ours.preempted, theirs.preempted),
            ("scheduled tokens", ours.rows, theirs.rows),
            ("admissions and their cached tokens", cached, theirs.admitted),
            ("finished", ours.finished, ended),
        ]

    def _compared_state(self) -> list[tuple[str, Any, Any]]:
        scheduler, other = self._ours.scheduler, self._theirs.scheduler
        mine = {
            r.request_id: (
                r.num_computed_tokens,
                r.num_output_tokens,
                r.num_preemptions,
                r.state is RequestState.RUNNING,
            )
            for r in scheduler.unfinished()
        }
        running = {request.request_id for request in other.running}
        its = {
            name: (r.num_computed_tokens, r.num_output_tokens, r.num_preemptions, name in running)
            for name, r in other.requests.items()
        }
        residents = list(scheduler.running)
        if not self._pair.bridged:
            # vLLM's own lists are in the order of admission, whatever its policy.
            residents.sort(key=lambda request: request.admitted_index)
        queue = [request.request_id for request in scheduler.waiting.ordered(self._ours.now)]
        return [
            ("computed, output, preemptions, running", mine, its),
            ("waiting queue", queue, [request.request_id for request in other.waiting]),
            (
                "running order",
                [request.request_id for request in residents],
                [request.request_id for request in other.running],
            ),
            ("free blocks", self._ours.free_blocks, self._theirs.num_free_blocks),
            ("cached blocks", scheduler.kv.pool.num_cached, self._theirs.num_cached_blocks),
        ]


def prompt_tokens(arrival: Arrival, block_size: int, private: int) -> list[int]:
    """Token ids whose blocks are equal exactly where the world's chained hashes are."""
    hashes = arrival.fields.get("block_hashes", [])
    shared = [1 + ord(content[-1]) % 2 for content in hashes for _ in range(block_size)]
    return shared + [private] * (arrival.prompt - len(shared))
