"""What the kit holds a policy to. A check is a promise in words, the worlds it is tried in, and a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from tinyllm.conformance.limits import ViolationError, require
from tinyllm.conformance.stepper import Step, Stepper
from tinyllm.conformance.watching import watched
from tinyllm.conformance.world import World
from tinyllm.policy import Key, Request, SchedulingPolicy
from tinyllm.policy.explain import waits_for

MakePolicy = Callable[[], SchedulingPolicy]
"""Makes a new policy object; its class is one, if it needs no arguments."""

MOST_OVERTAKING_TWINS = 5
"""A request may end after so many that are its like in everything and came later."""

COMPARED_STEPS = 150
"""Steps after which two runs are taken as equal. Only `every_request_ends` needs the whole of a long run."""


class Check(NamedTuple):
    """One promise of a policy. `run` raises ViolationError, or IntegrityError, in a world where it is broken."""

    name: str
    promise: str
    run: Callable[[MakePolicy, World], Any]
    draw: Callable[..., World] = World.draw


class Asked(SchedulingPolicy):
    """A policy whose promises are not believed: asked for every key, in every step."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self.preemptive, self.overtake = policy.preemptive, policy.overtake
        self.key = policy.key  # type: ignore[method-assign]
        self.on_arrival = policy.on_arrival  # type: ignore[method-assign]
        self.on_finish = policy.on_finish  # type: ignore[method-assign]

    def on_tokens(self, view: Request, prefill: int, decode: int, now: int) -> None:
        # A method of the class, for the scheduler looks there whether anybody listens.
        self._policy.on_tokens(view, prefill, decode, now)


def every_request_ends(make: MakePolicy, world: World) -> Stepper:
    """Nobody is held for ever, and nobody goes round in circles of preemption."""
    stepper = world.run(make())
    left = stepper.scheduler.unfinished()
    if left and not stepper.steps[-1].rows:
        why = "; ".join(f"{r.request_id} {waits_for(stepper.scheduler, r, stepper.now)}" for r in left)
        raise ViolationError(f"held for ever: after hours in which nothing ran, {why}")
    if left:
        names = ", ".join(f"{r.request_id} (preempted {r.num_preemptions} times)" for r in left)
        raise ViolationError(f"starved: {len(stepper.steps)} steps did not end {names}")
    pool = stepper.scheduler.kv.pool
    require(sorted(pool.free_order()) == list(range(pool.num_blocks)), "the drained pool lacks blocks")
    return stepper


def no_twin_starves(make: MakePolicy, world: World) -> None:
    """Of requests alike in all but arrival, none is passed over again and again by later ones."""
    first = world.arrivals[0]
    if any(
        (a.prompt, a.output, a.fields) != (first.prompt, first.output, first.fields) for a in world.arrivals
    ):
        return  # a world made smaller in one of them only
    ended = [int(name[1:]) for step in world.run(make()).steps for name in step.finished]
    for place, index in enumerate(ended):
        overtaking = [f"r{other}" for other in ended[:place] if other > index]
        require(
            len(overtaking) <= MOST_OVERTAKING_TWINS,
            f"starved: r{index} ended after {', '.join(overtaking)}, which are its like and came later",
        )


def same_world_same_steps(make: MakePolicy, world: World) -> None:
    """Two new policy objects take the same decisions in the same world."""
    _require_same(_steps(make(), world), _steps(make(), world), "in one run", "in the next")


def hidden_lengths_are_hidden(make: MakePolicy, world: World) -> None:
    """Nothing depends on an output length before a request ends by it."""
    one, other = _steps(make(), world), _steps(make(), world.with_other_outputs())
    # The first finish that differs is seen by all: from there on the two worlds are two.
    shared = next((i + 1 for i, (a, b) in enumerate(zip(one, other)) if a.finished != b.finished), None)  # noqa: B905
    one, other = ([step._replace(finished=[]) for step in steps[:shared]] for steps in (one, other))
    _require_same(one, other, "with the true output lengths", "with other ones that it can't know")


def promises_are_kept(make: MakePolicy, world: World) -> None:
    """`stable_waiting`, `waiting_group` and `decode_horizon` change no decision."""
    believed, asked = _steps(make(), world), _steps(Asked(make()), world)
    _require_same(believed, asked, "as its promises let the scheduler do", "asked for every key")


def views_are_only_read(make: MakePolicy, world: World) -> None:
    """A policy changes no attribute of a request: the scheduler and the log would believe it."""
    world.run(watched(make()), most_steps=COMPARED_STEPS)


def keys_are_stable(make: MakePolicy, world: World) -> None:
    """A key asked twice at one instant is one key and, where promised, none changes while its request waits."""
    known: dict[tuple[str, int], Key] = {}

    def compare(stepper: Stepper) -> None:
        policy, now = stepper.policy, stepper.now
        for request in stepper.scheduler.unfinished():
            key, again = policy.key(request, now), policy.key(request, now)
            require(key == again, f"{request.request_id}: two answers at {now} ns: key {key}, then {again}")
        if policy.stable_waiting:
            for request in stepper.scheduler.waiting.requests():
                waiting_key = policy.key(request, now)
                if waiting_key is None:
                    continue
                wait = (request.request_id, request.num_preemptions)
                first = known.setdefault(wait, waiting_key)
                require(
                    first == waiting_key,
                    f"{request.request_id}: stable_waiting is promised, and its key went from {first} "
                    f"to {waiting_key} while it waited",
                )

    world.run(make(), compare, COMPARED_STEPS)


def counters_never_fall(make: MakePolicy, world: World) -> None:
    """A policy that charges for service in `counters` (as VTC does) never takes a charge back."""
    known: dict[Any, Any] = {}

    def compare(stepper: Stepper) -> None:
        for name, count in getattr(stepper.policy, "counters", {}).items():
            before = known.get(name, 0)
            require(
                count >= before, f"negative charge: the counter of {name!r} fell from {before} to {count}"
            )
            known[name] = count

    stepper = world.run(make(), compare, COMPARED_STEPS)
    compare(stepper)


CHECKS: Sequence[Check] = (
    Check("repeatable", "the same world twice gives the same steps", same_world_same_steps),
    Check("ends", "limits hold in every step, and every request ends", every_request_ends),
    Check("fair to twins", "no stream of equal requests starves one", no_twin_starves, World.draw_twins),
    Check("blind", "no decision depends on a hidden output length", hidden_lengths_are_hidden),
    Check("reads only", "no attribute of a request is written", views_are_only_read),
    Check("stable", "keys stand still while they have to", keys_are_stable),
    Check("promises", "lazy scheduling changes no decision", promises_are_kept),
    Check("charges", "counters of service never fall", counters_never_fall),
)


def _steps(policy: SchedulingPolicy, world: World) -> list[Step]:
    return world.run(policy, most_steps=COMPARED_STEPS).steps


def _require_same(one: list[Step], other: list[Step], name: str, other_name: str) -> None:
    for number, (a, b) in enumerate(zip(one, other)):  # noqa: B905
        require(a == b, f"step {number} differs: {name} {_told(a)}; {other_name} {_told(b)}")
    require(len(one) == len(other), f"{len(one)} steps {name}, {len(other)} {other_name}")


def _told(step: Step) -> str:
    rows = ", ".join(f"{name} ({tokens})" for name, tokens in step.rows) or "nothing"
    lost = f", preempting {', '.join(step.preempted)}" if step.preempted else ""
    return f"{rows}{lost}"


def draw(check: Check, rng: Random, policy: SchedulingPolicy) -> World:
    """A world of at most ten requests for this check of this policy."""
    if check.draw == World.draw:
        return World.draw(rng, most_requests=10, may_preempt=policy.preemptive)
    return check.draw(rng)
