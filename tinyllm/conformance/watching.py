"""Finds a policy that writes to the views which it may only read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinyllm.conformance.limits import require
from tinyllm.policy import Request, SchedulingPolicy

_HOOKS = ("key", "waiting_group", "on_arrival", "on_tokens", "on_finish", "decode_horizon")


def watched(policy: SchedulingPolicy) -> SchedulingPolicy:
    """The policy, which from now on raises ViolationError in the call that changes an attribute of any request."""
    views: dict[str, Request] = {}
    for name in _HOOKS:
        # On the object, not a class around it: what its class promises must stay visible. It may be frozen.
        object.__setattr__(policy, name, _watched(name, getattr(policy, name), views))
    return policy


def _watched(name: str, hook: Callable[..., Any], views: dict[str, Request]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if name == "on_arrival":
            views[args[0].request_id] = args[0]
        before = [(view, _attributes(view)) for view in views.values()]
        answer = hook(*args)
        for view, attributes in before:
            if attributes != _attributes(view):
                _blame(name, view.request_id, attributes, _attributes(view))
        if name == "on_finish":
            del views[args[0].request_id]
        return answer

    return call


def _attributes(view: Request) -> list[Any]:
    values = (getattr(view, name) for name in Request.__slots__)
    return [value.copy() if type(value) is list else value for value in values]


def _blame(hook: str, request_id: str, before: list[Any], after: list[Any]) -> None:
    for name, old, new in zip(Request.__slots__, before, after, strict=True):
        require(old == new, f"{hook} wrote to {request_id}: its {name} was {old}, and is {new}")
