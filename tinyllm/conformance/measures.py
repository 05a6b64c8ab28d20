"""What is measured and not judged: how long requests wait, and how often they are preempted."""

from __future__ import annotations

from tinyllm.conformance.stepper import STEP_NS, Stepper


class Measures:
    """Sums over the worlds that ended.

    Attributes:
        requests: accepted requests.
        longest_wait: steps from a request's arrival to its first tokens, the most of all.
        preemptions, most_preemptions: of all requests, and of the one with the most.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.longest_wait = 0
        self.preemptions = 0
        self.most_preemptions = 0

    @property
    def preemptions_per_request(self) -> float:
        """The mean over all requests; 0 without one."""
        return self.preemptions / self.requests if self.requests else 0.0

    def add(self, stepper: Stepper) -> None:
        """Take in a run."""
        first_step: dict[str, int] = {}
        for number, step in enumerate(stepper.steps):
            for name in step.admitted:
                first_step.setdefault(name, number)
        for name, request in stepper.requests.items():
            self.requests += 1
            self.preemptions += request.num_preemptions
            self.most_preemptions = max(self.most_preemptions, request.num_preemptions)
            if name in first_step:
                wait = first_step[name] - request.arrival // STEP_NS
                self.longest_wait = max(self.longest_wait, wait)
