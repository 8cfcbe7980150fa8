"""Whether fake clusters can hold fake runs, where trainers go, and the sentences about it."""

from raytrain.placement import (
    Demand,
    Node,
    claim_of,
    evaluator_node,
    missing,
    plan_rows,
    refusal,
    shortage,
    trainer_nodes,
    without_a_place,
)


def node(name: str, cpus: float, head: bool = False, free: float | None = None, **others: float) -> Node:
    resources = {"CPU": cpus, **others}
    return Node(name, "10.0.0.1", resources, {**resources, "CPU": cpus if free is None else free}, head)


def demands(managers: int = 2, cpus: float = 1.0, trainer: dict | None = None) -> list[Demand]:
    run = [Demand("trainer of A", "trainer", {"CPU": 1.0} if trainer is None else trainer)]
    return run + [Demand(f"env-manager-{i}", "env manager", {"CPU": cpus}) for i in range(managers)]


def test_too_few_cpus_are_refused_with_both_numbers():
    """C05."""
    assert "needs 7 CPUs (6 env managers × 1 + 1 trainer × 1), and the Ray cluster has 2" in refusal(demands(6), [node("a", 2)], waits=False)
    assert refusal(demands(1), [node("a", 2)], waits=False) == ""


def test_what_no_single_node_has_is_refused():
    """C93: numbers of the largest node, whatever the cluster has as a whole; custom resources too, and both on the same node."""
    assert "An env manager needs 3 CPUs on one node, and the largest node has 2" in refusal(demands(1, 3), [node("a", 2), node("b", 2)], waits=False)
    assert "needs 1 GPU" in refusal(demands(trainer={"GPU": 1}), [node("a", 4)], waits=False)
    assert "1 of fast" in refusal(demands(trainer={"fast": 1}), [node("a", 4)], waits=False)
    apart = [node("a", 4), node("b", 0, fast=1)]
    assert "no node has all of it" in refusal(demands(trainer={"CPU": 1, "fast": 1}), apart, waits=False)
    assert refusal(demands(trainer={"fast": 1}), apart, waits=False) == ""


def test_pieces_that_nothing_fits_into_do_not_add_up():
    halves = [node("a", 1.5), node("b", 1.5), node("c", 1.0)]
    text = refusal(demands(3, 1.0, {"CPU": 0.5}) + [Demand("env-manager-3", "env manager", {"CPU": 1.0})], [node("a", 1.5)] * 3, waits=False)
    assert "4 env managers of 1 CPU each" in text and "room for 3" in text
    assert refusal(demands(3, 1.0, {"CPU": 0.5}), halves, waits=False) == ""


def test_a_cluster_that_may_grow_waits_unless_it_can_never_grow_so_far():
    few = [node("a", 1)]
    assert refusal(demands(4), few, waits=True) == ""
    assert "needs 5 CPUs" in shortage(demands(4), few) and shortage(demands(4), [node("a", 8)]) == ""
    assert "can grow to 4" in refusal(demands(4), few, waits=True, limits={"CPU": 4})
    assert refusal(demands(4), few, waits=True, limits={"CPU": 8}) == ""


def test_trainers_go_to_the_head_if_it_fits_and_costs_no_env_manager_its_place():
    """C97: not to a node that is taken away; never to a head with 0 CPUs."""
    assert trainer_nodes(demands(), [node("worker", 4), node("head", 4, head=True)]) == {"trainer of A": "head"}
    assert trainer_nodes(demands(), [node("head", 0, head=True), node("worker", 4)]) == {"trainer of A": "worker"}
    # On the 3 CPUs it would cost a place for 2 CPUs, in the single one nothing.
    assert trainer_nodes(demands(1, 2.0), [node("a", 2, head=True), node("b", 3)]) == {"trainer of A": "b"}
    assert trainer_nodes(demands(trainer={"fast": 1}), [node("head", 4, head=True), node("b", 4, fast=1)]) == {"trainer of A": "b"}
    assert trainer_nodes(demands(), [node("head", 0, head=True)]) == {}, "Ray will say where once a node has come"


def test_two_trainers_do_not_take_the_same_place_twice():
    run = [Demand(f"trainer of {name}", "trainer", {"GPU": 1.0}) for name in "AB"]
    assert set(trainer_nodes(run, [node("a", 1, GPU=1), node("b", 1, GPU=1)]).values()) == {"a", "b"}


def test_an_evaluator_goes_where_env_managers_can_and_trainers_are_not():
    """Its environments are theirs; it claims nothing, so Ray would put it anywhere, beside a trainer on its GPU or on a head of 0 CPUs."""
    head, gpu, small, large = node("head", 0, head=True), node("gpu", 8, GPU=1), node("small", 2), node("large", 4)
    assert evaluator_node(demands(), [head, gpu, small, large], ["gpu"]) == "large"
    assert evaluator_node(demands(), [head, gpu, small], ["small"]) == "gpu", "the trainer is elsewhere"
    assert evaluator_node(demands(), [head, gpu, small], []) == "small", "one without a GPU"
    assert evaluator_node(demands(), [head, gpu], ["gpu"]) == "gpu", "there is no other"
    assert evaluator_node([Demand("env-manager-0", "env manager", {"CPU": 1.0, "GPU": 0.25})], [small, gpu], []) == "gpu"
    assert evaluator_node(demands(1, 16.0), [head, gpu, small], []) is None


def test_what_has_its_place_waits_for_none():
    """What it claims is no longer free while its process starts; Ray knows who is still in its queue."""
    run = demands(3)
    queued = {claim_of({"CPU": 1.0}): 2, claim_of({"CPU": 0.1 + 0.2, "fast": 1}): 1}
    assert [d.name for d in without_a_place(run, queued)] == ["env-manager-1", "env-manager-2"], "the last ones that asked"
    assert without_a_place(run, {}) == [] and without_a_place(run[:2], {claim_of({"CPU": 1}): 9}) == run[:2]
    assert without_a_place([Demand("t", "trainer", {"CPU": 0.3, "fast": 1.0, "GPU": 0.0})], queued) != []


def test_waits_say_what_is_missing():
    waiting = demands(3)[1:]
    assert missing(waiting[:1], [node("a", 2, free=0)]) == "env-manager-0 (needs 1 CPU, 0 of 2 free)"
    assert missing(waiting, [node("a", 2, free=0.5)]) == "env-manager-0 and 2 more (each needs 1 CPU, 0.5 of 2 free)"


def test_the_plan_names_every_node():
    rows = plan_rows({"trainer of A": "b", "env-manager-0": "b"}, [node("a", 0, head=True), node("b", 2)])
    assert rows == [("10.0.0.1 (head, node a)", "nothing of this run"), ("10.0.0.1 (node b)", "trainer of A, env-manager-0")]
