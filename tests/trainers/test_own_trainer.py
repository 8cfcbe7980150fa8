"""A trainer of the user's own as raytrain sees it: the contract of every trainer, kept by the example of docs/extending.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from envs import own_code
from envs.own_code import OwnCodeError
from tests.trainers.contract import OnPolicyContract, same_tensors, through_json
from tests.trainers.rollouts import DISCRETE, HYBRID, network_of
from trainers.registry import first_weights, make_trainer
from trainers.settings import OwnTrainerSettings

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(autouse=True)
def _examples(monkeypatch):
    monkeypatch.setattr(own_code, "_folders", (str(EXAMPLES),))
    monkeypatch.syspath_prepend(EXAMPLES)


class ReinforceContract(OnPolicyContract):
    counters = ("agent_steps", "policy_updates")

    def settings(self, **hyperparameters):
        hyper = {"buffer_size": 33, "learning_rate": 0.01, **hyperparameters}
        return OwnTrainerSettings(trainer_type="reinforce:Reinforce", hyperparameters=hyper, network_settings=network_of(), max_steps=1000)

    def make(self, spec, settings, seed):
        root = np.random.SeedSequence(seed)
        return make_trainer(spec, settings, root, 200, first_weights(spec, settings, np.random.default_rng(root)))

    def test_learns_from_every_row_held(self):
        d = self.driver()
        d.update()
        assert (d.trainer.agent_steps, d.trainer.rows_held, d.trainer.is_ready()) == (64, 0, False)


@pytest.mark.slow
class TestDiscrete(ReinforceContract):
    action = DISCRETE


@pytest.mark.slow
class TestHybridOfAllObservations(ReinforceContract):
    action = HYBRID
    observations = "dict"

    def test_rewards_to_go_end_with_their_trajectory(self):
        """1 + γ + γ² … within each, nothing across."""
        d, seen = self.driver(), []
        d.trainer._own.update = lambda rows: seen.append(rows)
        batches = [d.collect(), d.collect()]
        for batch in batches:
            batch.reward[:] = 1.0
            d.trainer.process(batch)
        d.trainer.update()
        (rows,) = seen
        expected = np.concatenate([[sum(0.5**k for k in range(n - t)) for t in range(n)] for n in rows.batch.length])
        np.testing.assert_allclose(rows.rewards_to_go(0.5), expected, rtol=1e-6)
        assert rows.batch.rows == 64 == len(rows.inputs) and rows.agent_steps == 64


@pytest.mark.slow
class TestNormalized(ReinforceContract):
    """Statistics are of the rows of each update, and rows are seen as the policy saw them."""

    action = DISCRETE

    def settings(self, **hyperparameters):
        return super().settings(**hyperparameters).model_copy(update={"network_settings": network_of(normalize=True)})

    def test_begins_with_the_weights_of_another_run(self):
        """The statistics of that run, too."""
        d, source = self.driver(), self.driver(1)
        for _ in range(2):
            source.update()
        d.trainer.load_weights(through_json(source.trainer.state()))
        assert d.trainer.agent_steps == 0
        d.publish()
        assert same_tensors(d.trainer.policy_weights(), source.trainer.policy_weights())
        d.update()


def test_a_state_that_cannot_be_saved_names_the_method():
    one = TestDiscrete()
    d = one.driver()
    d.trainer._own.state = lambda: {"notes": np.array(["text"])}
    with pytest.raises(OwnCodeError, match="Expected numeric arrays from trainer_type reinforce:Reinforce, state, received notes of dtype"):
        d.trainer.state()
