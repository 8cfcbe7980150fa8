"""Self-play and lessons over Ray: the same bytes as in one process where that is promised, whole accounts where it is not."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import raytrain
from tests.raytrain.test_run_self_play import chase, duel, echo

pytest.importorskip("pettingzoo", reason="the extra pettingzoo is not installed")

SMALL = {"env_manager_cpus": 0.25, "trainer_cpus": 0.25}


def train(tmp_path, data, run_id, **options):
    return raytrain.train({**data, "distributed": SMALL}, results_dir=tmp_path, run_id=run_id, **options)


def lock_step(data: dict) -> dict:
    return {**data, "behaviors": {name: {**settings, "threaded": False} for name, settings in data["behaviors"].items()}}


def saved(run, behavior: str) -> tuple[dict[str, np.ndarray], dict]:
    """The last checkpoint: tensors of the trainer, and the referee's state."""
    folder = max((run.path / "checkpoints").iterdir())
    return load_file(folder / behavior / "trainer.safetensors"), json.loads((folder / "run.json").read_text())["run"]["referee"]


@pytest.mark.parametrize(("data", "behavior"), [(duel(p_win=0.5), "RiggedDuel"), (echo(require_reset=True), "ParamEcho")], ids=["self-play", "lessons"])
def test_lock_step_over_ray_and_local_give_the_same_bytes(private_ray, tmp_path, data, behavior):
    """C83: opponents, teams, ratings and lessons change at the same steps, whatever carries them."""
    over_ray = train(tmp_path, lock_step(data), "ray", num_env_managers=2)
    local = train(tmp_path, data, "local", num_env_managers=2, local=True)
    (a, referee), (b, other) = saved(over_ray, behavior), saved(local, behavior)
    assert referee == other
    assert all(np.array_equal(a[k], b[k]) for k in a) and a.keys() == b.keys()


def test_two_trainers_take_turns_asynchronously(private_ray, tmp_path):
    """Asymmetric teams: both learn to the end, and every agent step is accounted for."""
    summaries = []
    run = train(tmp_path, chase(), "run", on_summary=summaries.append)
    for one in run.results["behaviors"].values():
        ledger = one["ledger"]
        assert one["agent_steps"] >= 1000
        assert ledger["produced"] == ledger["consumed"] + sum(v for k, v in ledger.items() if k.startswith("dropped_"))
    assert {s.values["Self-play/Learning Team"] for s in summaries} == {0.0, 1.0}
    _, referee = saved(run, "hunter")
    assert all(side["opponent_steps"] > 300 for side in referee["sides"].values())
    assert raytrain.load_snapshots(run.path, "runner")[0].number == 0


def test_self_play_and_lessons_go_on_after_a_resume(private_ray, tmp_path):
    """C27, C28: the referee begins where it was."""
    data = {**duel(p_win=0.5), "distributed": SMALL}
    first = train(tmp_path, data, "run", overrides={"behaviors.RiggedDuel.max_steps": 500})
    _, before = saved(first, "RiggedDuel")
    resumed = train(tmp_path, data, "run", resume=True)
    _, after = saved(resumed, "RiggedDuel")
    assert after["number"] > before["number"] and after["sides"]["RiggedDuel"]["agent_steps"] >= 1000
    assert set(before["sides"]["RiggedDuel"]["frozen"]) < set(after["sides"]["RiggedDuel"]["frozen"])
