"""Runs whose processes are killed: what is started anew, what is lost and where it is counted, and when the run gives up.

Each run is the command line's own, with a private Ray; only processes that carry its token are ever killed.
"""

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS)]

from chaos_runs.processes import actors, kill_all, new_token, private_ray, start_run
from chaos_runs.runs import complete_checkpoints, progress, status, unreadable_checkpoints

ENDLESS = 50_000_000
ALPHA = "Policy/Continuous Entropy Coeff"
PATIENCE_S = 240.0  # only ever waited out by a test that fails
NO_LIMITS = {"max_lifetime_restarts": -1, "restarts_rate_limit_n": -1}


def cartpole(**behavior) -> dict:
    settings = {
        "hyperparameters": {"buffer_size": 256, "batch_size": 64, "num_epoch": 2}, "network_settings": {"hidden_units": 16, "num_layers": 1},
        "max_steps": ENDLESS, "summary_freq": 2000, "checkpoint_interval": 4000, "time_horizon": 32, **behavior,
    }
    return {"env": "CartPole-v1", "behaviors": {"CartPole": settings}, "env_settings": {"num_envs": 4, "seed": 3, **NO_LIMITS}}


class Disturbed:
    """A run in a process of its own, and what it has said so far."""

    def __init__(self, folder: Path, data: dict, environment: dict[str, str], managers: int = 2) -> None:
        data["distributed"] = {"num_env_managers": managers, "env_manager_cpus": 0.25, "trainer_cpus": 0.25}
        data["checkpoint_settings"] = {"results_dir": str(folder), "run_id": "run"}
        file = folder / "run.yaml"
        file.write_text(yaml.safe_dump(data))
        self.folder, self.token, self.log = folder / "run", new_token(), folder / "log"
        self.polls: list[int] = []
        self.process = start_run(sys.executable, file, [], self.token, self.log, environment)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", self.log.read_text(errors="replace"))

    def until(self, comes, what: str) -> float:
        """Wait; how long it took."""
        began = time.monotonic()
        while not comes():
            found = status(self.folder)
            if found:
                self.polls.append(progress(found))
            assert self.process.poll() is None, f"it ended before {what}:\n{self.log.read_text()[-3000:]}"
            assert time.monotonic() - began < PATIENCE_S, f"no {what}:\n{self.log.read_text()[-3000:]}"
            time.sleep(0.1)
        return time.monotonic() - began

    def until_it_learns(self, steps: int = 3000) -> None:
        """Its progress grows by so many agent steps from now on."""
        before = progress(status(self.folder))
        self.until(lambda: progress(status(self.folder)) > before + steps, f"{steps} more agent steps")

    def kill(self, kind: str) -> None:
        self.until(lambda: actors(self.token, kind), f"a process of {kind}")
        actors(self.token, kind)[0].kill()

    def end(self) -> dict:
        """Ctrl-C; the last status."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it does not end:\n{self.log.read_text()[-3000:]}")
        assert self.process.returncode == 0, self.log.read_text()[-3000:]
        return status(self.folder)

    def ended(self) -> int:
        """Wait until it ends by itself; its exit code."""
        return self.process.wait(timeout=PATIENCE_S)

    def rows(self, behavior: str) -> list[dict[str, str]]:
        with (self.folder / behavior / "metrics.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def check_what_is_left(self, *behaviors: str) -> None:
        """Every agent step is accounted for, progress never fell, curves run forwards, checkpoints load."""
        assert "not accounted for" not in self.text
        assert all(a <= b for a, b in zip(self.polls, self.polls[1:])), self.polls
        assert not unreadable_checkpoints(self.folder)
        for behavior in behaviors:
            steps = [int(row["step"]) for row in self.rows(behavior)]
            assert steps == sorted(set(steps)) and len(steps) > 1


@pytest.fixture
def disturb(tmp_path):
    """Starts a run; whatever is left of it ends with the test."""
    runs = []
    with private_ray() as environment:

        def start(data: dict, **more) -> Disturbed:
            runs.append(Disturbed(tmp_path, data, environment, **more))
            return runs[-1]

        yield start
        for run in runs:
            kill_all(run.token, run.process)


@pytest.mark.parametrize("threaded", [True, False], ids=["asynchronous", "lock-step"])
def test_a_run_survives_the_death_of_each_of_its_processes(disturb, threaded):
    """C17, C18: env manager, exchange and trainer by SIGKILL; each death is named, and the account is exact at the end."""
    run = disturb(cartpole(threaded=threaded))
    run.until_it_learns()
    run.kill("env manager")
    run.until(lambda: re.search(r"env-manager-\d died: its process ended .* started anew \(1 so far\)", run.text), "word of the env manager")
    run.until_it_learns()
    run.kill("exchange")
    run.until_it_learns()
    run.kill("trainer")
    run.until(lambda: "trainer of CartPole died" in run.text, "word of the trainer")
    run.until(lambda: re.search(r"going on from checkpoint \d+: CartPole at [\d,]+ agent steps", run.text), "a way back")
    run.until_it_learns()
    found = run.end()
    assert found["restarts"] == 3 and found["behaviors"]["CartPole"]["rolled_back_steps"] > 0
    run.check_what_is_left("CartPole")


def test_a_killed_trainer_of_sac_goes_on_with_its_alpha_and_keeps_rows(disturb):
    """C22: α is that of the checkpoint and not 1 again; rows collected for the dead one are learnt from."""
    hyper = {"batch_size": 32, "buffer_size": 5000, "buffer_init_steps": 100, "learning_rate": 3e-3, "steps_per_update": 2.0}
    data = cartpole(trainer_type="sac", hyperparameters=hyper, summary_freq=200, checkpoint_interval=500)
    data["env"], data["behaviors"] = "Pendulum-v1", {"Pendulum": data["behaviors"].pop("CartPole")}
    run = disturb(data)
    run.until_it_learns(2000)
    run.kill("trainer")
    run.until(lambda: "going on from checkpoint" in run.text, "a way back")
    run.until_it_learns(1000)
    run.end()
    run.check_what_is_left("Pendulum")
    ledger = json.loads((max((run.folder / "checkpoints").iterdir()) / "run.json").read_text())["run"]["ledger"]["Pendulum"]
    assert "dropped_stale_epoch" not in ledger
    at = int(re.search(r"Pendulum at ([\d,]+) agent steps", run.text)[1].replace(",", ""))
    later = [float(row[ALPHA]) for row in run.rows("Pendulum") if row.get(ALPHA) and int(row["step"]) > at]
    before = [float(row[ALPHA]) for row in run.rows("Pendulum") if row.get(ALPHA) and int(row["step"]) <= at]
    assert before[-1] < 0.7, f"it has learnt: {before}"
    assert later[0] < before[-1] + 0.1, f"{before} → {later}"


def test_all_trainers_and_the_referee_go_back_together(disturb):
    """Self-play of two behaviors, of which one trainer is killed: ratings, opponents and weights are of one moment again."""
    pytest.importorskip("pettingzoo", reason="the extra pettingzoo is not installed")
    settings = {"save_steps": 150, "team_change": 200, "swaps_per_team_change": 2}
    each = {
        "hyperparameters": {"buffer_size": 100, "batch_size": 50, "num_epoch": 2}, "network_settings": {"hidden_units": 8, "num_layers": 1},
        "max_steps": ENDLESS, "summary_freq": 500, "checkpoint_interval": 1000, "time_horizon": 64, "self_play": settings,
    }
    run = disturb({
        "env": "envs.toy_teams:Chase", "behaviors": {"hunter": {**each, "agents": "hunter_*"}, "runner": {**each, "agents": "runner"}},
        "env_settings": {"num_envs": 2, "seed": 4, **NO_LIMITS},
    }, managers=1)
    run.until(lambda: len(complete_checkpoints(run.folder)) > 2, "checkpoints of both")
    run.kill("trainer")
    run.until(lambda: re.search(r"going on from checkpoint \d+: hunter at [\d,]+ agent steps, runner at [\d,]+ agent steps", run.text), "a way back")
    before = complete_checkpoints(run.folder)[-1].name
    run.until(lambda: complete_checkpoints(run.folder)[-1].name > before, "a checkpoint of both after it")
    run.end()
    run.check_what_is_left("hunter", "runner")
    state = json.loads((max((run.folder / "checkpoints").iterdir()) / "run.json").read_text())["run"]
    assert state["referee"]["number"] > 1_000_000, "orders go on above all that env managers have seen"
    assert {name: side["agent_steps"] for name, side in state["referee"]["sides"].items()} == state["behaviors"]


def test_beyond_the_limit_the_run_ends_with_the_reason(disturb):
    """C17: an env that ends its process again and again: one restart is allowed, the second death ends the run; everything saved is there."""
    data = cartpole()
    data |= {"env": "envs.toy:CrashAt", "env_kwargs": {"n": 3000, "mode": "exit"}, "behaviors": {"CrashAt": data["behaviors"]["CartPole"]}}
    data["env_settings"] |= {"max_lifetime_restarts": 1, "num_envs": 2}
    run = disturb(data, managers=1)
    assert run.ended() == 1, run.log.read_text()[-3000:]
    assert "started anew (1 of at most 1 times)" in run.text
    assert "Not started anew: 1 restart so far, and the limit is 1 (env_settings.max_lifetime_restarts" in run.text
    found = status(run.folder)
    assert found["state"] == "failed" and "env-manager-0 died" in found["reason"] and found["restarts"] == 1
    assert not unreadable_checkpoints(run.folder) and max((run.folder / "checkpoints").iterdir()).exists()


def test_an_exception_after_a_while_ends_the_run_with_the_users_own_traceback(disturb, tmp_path):
    """C19: sooner than the period of the rate limit it is a mistake, however many restarts are allowed."""
    (tmp_path / "fragile.py").write_text(
        "import gymnasium as gym\n\nclass Fragile(gym.Wrapper):\n    n = 0\n    def step(self, action):\n        self.n += 1\n"
        "        if self.n == 1500:\n            raise ValueError('boom-42')\n        return self.env.step(action)\n\n"
        "def make():\n    return Fragile(gym.make('CartPole-v1'))\n"
    )
    data = cartpole()
    data |= {"env": "fragile:make", "behaviors": {}, "default_settings": data["behaviors"]["CartPole"]}
    data["env_settings"] |= {"restarts_rate_limit_n": 1000, "restarts_rate_limit_period_s": 3600.0}
    run = disturb(data, managers=1)
    assert run.ended() == 1, run.log.read_text()[-3000:]
    assert "boom-42" in run.text and "fragile.py" in run.text
    assert status(run.folder)["state"] == "failed"
