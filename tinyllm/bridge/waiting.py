"""vLLM's waiting queue in the order of a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request as VLLMRequest

from tinyllm.bridge.following import FollowingScheduler
from tinyllm.policy.request import Request, RequestState


class PolicyQueue(RequestQueue):  # type: ignore[misc]  # a type of vLLM's
    """What waits is known to the following scheduler; vLLM asks here who is next.

    Requests that the policy holds are not offered: the queue is then false, although it has a length.

    Args:
        following: knows the waiting views, their order and the time.
        now: of the step, ns.
        theirs, view: vLLM's request of a view, and back.
    """

    def __init__(
        self,
        following: FollowingScheduler,
        now: Callable[[], int],
        theirs: Callable[[Request], Any],
        view: Callable[[Any], Request],
    ) -> None:
        self._waiting = following.waiting
        self._now = now
        self._theirs = theirs
        self._view = view
        self._offered: VLLMRequest | None = None
        self.arrived: list[VLLMRequest] = []
        """Those that `following` does not know yet."""

    def add_request(self, request: VLLMRequest) -> None:
        """Let a request wait for the next step, at whose time the policy hears of it."""
        self.arrived.append(request)

    def peek_request(self) -> VLLMRequest:
        best = self._waiting.best(self._now())
        if best is None:
            raise IndexError("peek from an empty queue")
        self._offered = self._theirs(best)
        return self._offered

    def pop_request(self) -> VLLMRequest:
        """The request that was offered: by now it runs, or vLLM passes it over in this step."""
        request = self._offered if self._offered is not None else self.peek_request()
        self._offered = None
        view = self._view(request)
        if view.state is not RequestState.RUNNING:
            self._waiting.remove(view)
        return request

    def prepend_request(self, request: VLLMRequest) -> None:
        """It was preempted, and waits in `following` since then."""

    def prepend_requests(self, requests: Iterable[VLLMRequest]) -> None:
        """Take back those that were passed over."""
        for request in requests:
            self._waiting.add(self._view(request), self._now())

    def remove_request(self, request: VLLMRequest) -> None:
        """Forget a request that `following` does not know yet; the others leave it when they are aborted there."""
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[VLLMRequest]) -> None:
        """Likewise for several."""
        gone = set(requests)
        self.arrived = [request for request in self.arrived if request not in gone]

    def __bool__(self) -> bool:
        return self._waiting.best(self._now()) is not None

    def __len__(self) -> int:
        return len(self._waiting) + len(self.arrived)

    def __iter__(self) -> Iterator[VLLMRequest]:
        return iter([self._theirs(view) for view in self._waiting.ordered(self._now())])
