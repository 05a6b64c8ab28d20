"""A user's own policy, as the bridge takes it: it preempts, and holds running and waiting requests."""

from __future__ import annotations

from tinyllm.policy import Key, Request, SchedulingPolicy


class Overtakes(SchedulingPolicy):
    """vLLM can't serve it: the first request that lacks blocks ends the admission there."""

    overtake = True

    def key(self, view: Request, now: int) -> Key | None:
        return (view.index,)


class TakesTurns(SchedulingPolicy):
    """Requests of odd and even priority are served in turns of 5 ms; a held one still runs if it is alone."""

    preemptive = True

    def __init__(self) -> None:
        self.unfinished: dict[str, Request] = {}
        self.served: dict[str, int] = {}

    def on_arrival(self, view: Request, now: int) -> None:
        self.unfinished[view.request_id] = view
        self.served[view.request_id] = 0

    def on_tokens(self, view: Request, prefill: int, decode: int, now: int) -> None:
        self.served[view.request_id] += prefill + decode

    def on_finish(self, view: Request, now: int) -> None:
        del self.unfinished[view.request_id]

    def key(self, view: Request, now: int) -> Key | None:
        waits_its_turn = (now // 5_000_000 + view.priority) % 2 == 1
        return None if waits_its_turn and len(self.unfinished) > 1 else (self.served[view.request_id],)
