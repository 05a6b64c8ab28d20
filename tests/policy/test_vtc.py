"""The Virtual Token Counter by hand: what is charged, who is lifted to what, who goes next."""

from __future__ import annotations

from tinyllm.policy.vtc import VTC


def served(world, tenant: str, prompt: int, output: int) -> None:
    """Serve one request of a tenant to its end."""
    world.add(f"{tenant}-{world.now}", prompt, output=output, tenant=tenant)
    world.run()


def test_prompt_tokens_count_once_and_sampled_ones_twice(engine) -> None:
    world = engine("vtc")
    served(world, "x", prompt=10, output=5)
    assert world.policy.counters == {"x": 10 + 2 * 5}


def test_the_weights_are_those_given(engine) -> None:
    world = engine(VTC(input_weight=3, output_weight=7))
    served(world, "x", prompt=10, output=5)
    assert world.policy.counters == {"x": 3 * 10 + 7 * 5}


def test_a_prompt_is_charged_a_chunk_at_a_time_when_it_is_scheduled(engine) -> None:
    world = engine("vtc", max_num_batched_tokens=64)
    world.add("a", 100, output=1, tenant="x")
    charged = []
    while (batch := world.schedule()) is not None:
        charged.append(world.policy.counters["x"])
        world.finish(batch)
    assert charged == [64, 100]
    assert world.policy.counters["x"] == 102


def test_cached_and_recomputed_tokens_are_free(engine) -> None:
    world = engine("vtc", enable_prefix_caching=True)
    for name in ("first", "second"):
        world.add(name, 40, output=2, tenant="x", block_hashes=["p", "q"])
        world.run()
    assert world.policy.counters == {"x": (40 + 4) + (8 + 4)}
    tight = engine("vtc", num_gpu_blocks=4)
    for name in "abc":
        tight.add(name, 16, output=16, tenant=name)
    tight.run()
    assert sum(request.num_preemptions for request in tight.requests.values()) >= 1
    assert set(tight.policy.counters.values()) == {16 + 2 * 16}


def test_idling_earns_no_credit_when_nobody_waits(engine) -> None:
    world = engine("vtc")
    served(world, "x", prompt=10, output=5)
    world.add("y", 4, output=1, tenant="y")
    assert world.policy.counters == {"x": 20, "y": 20}


def test_a_newcomer_is_lifted_to_the_smallest_counter_of_those_who_wait(engine) -> None:
    world = engine("vtc", max_num_seqs=1)
    world.add("running", 16, output=20, tenant="other")
    world.step()
    world.add("s", 16, tenant="small")
    world.add("l", 16, tenant="large")
    world.policy.counters |= {"other": 30, "small": 100, "large": 200, "ahead": 150}
    for tenant in ("new", "ahead"):
        world.add(tenant, 16, tenant=tenant)
    assert world.policy.counters == {"other": 30, "small": 100, "large": 200, "new": 100, "ahead": 150}


def test_a_tenant_ahead_of_the_others_is_never_lowered_and_a_waiting_one_never_lifted(engine) -> None:
    world = engine("vtc", max_num_seqs=1)
    world.add("running", 100, output=9, tenant="x")
    world.add("waiting", 16, output=1, tenant="y")
    world.step()
    before = dict(world.policy.counters)
    world.add("more of y", 16, output=1, tenant="y")
    world.add("more of x", 16, output=1, tenant="x")
    assert world.policy.counters == before == {"x": 102, "y": 0}


def test_the_last_to_leave_the_queue_is_the_last_admitted_and_not_the_last_to_get_a_chunk(engine) -> None:
    world = engine("vtc", long_prefill_token_threshold=32)
    world.add("long", 96, output=9, tenant="x")
    world.add("short", 32, output=9, tenant="y")
    for _ in range(2):
        world.step()
    assert world.policy.counters == {"x": 64, "y": 32 + 2 * 2}
    world.add("new", 8, tenant="z")
    assert world.policy.counters["z"] == 36


def test_tenants_take_turns_by_what_they_were_served(engine) -> None:
    world = engine("vtc", max_num_seqs=1)
    for i in range(3):
        world.add(f"x{i}", 10, output=1, tenant="x")
    for i in range(3):
        world.add(f"y{i}", 4, output=1, tenant="y")
    # x and y start at 0, x0 arrived first: x 12. Then y: 6, 12; a tie goes by arrival: x1 (24), y2 (18), x2.
    assert [step.admitted[0] for step in world.run()] == ["x0", "y0", "y1", "x1", "y2", "x2"]


def test_within_a_tenant_the_order_is_that_of_arrival(engine) -> None:
    world = engine("vtc", max_num_seqs=1)
    for name in ("c", "a", "b"):
        world.add(name, 8, output=2, tenant="x")
    assert [name for step in world.run() for name in step.admitted] == ["c", "a", "b"]


def test_requests_without_a_tenant_are_one_tenant(engine) -> None:
    world = engine("vtc")
    world.add("a", 8)
    world.add("b", 8)
    world.run()
    assert world.policy.counters == {None: 2 * (8 + 2)}


def test_an_aborted_waiting_request_leaves_its_tenant_without_a_backlog(engine) -> None:
    world = engine("vtc", max_num_seqs=1)
    world.add("running", 40, output=9, tenant="x")
    world.add("waiting", 16, tenant="y")
    world.step()
    world.abort("waiting")
    # Nobody waits: the newcomer is lifted to the last to leave the queue, x, and not to y's counter of 0.
    world.add("new", 16, tenant="z")
    assert world.policy.counters["z"] == 42
