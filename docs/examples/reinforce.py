"""A trainer: REINFORCE (Williams 1992, https://doi.org/10.1007/BF00992696) with a baseline that depends on time alone, and Adam of Keras."""

import numpy as np

from trainers import graph
from trainers.architecture import architecture
from trainers.own_settings import Hyperparameters
from trainers.quiet_tensorflow import tf  # TensorFlow, without what it has to say
from trainers.returns import normalize_advantages
from trainers.setting_types import NonNegativeFloat, PositiveFloat


class ReinforceHyperparameters(Hyperparameters):
    """Checked like the settings of a built-in trainer: types, ranges, unknown keys."""

    learning_rate: NonNegativeFloat = 3e-3
    gamma: PositiveFloat = 0.99
    entropy: NonNegativeFloat = 0.01


class Reinforce:
    """∇J = Σ_t ∇ log π(a_t | s_t) · (G_t − b), with the whole buffer in one step."""

    Hyperparameters = ReinforceHyperparameters

    def __init__(self, spec, settings, weights, rng):
        self.hyper = settings.hyperparameters
        self.arch = architecture(spec, settings.network_settings).as_given()
        self.variables = {name: tf.Variable(tensor) for name, tensor in weights.items()}
        self.adam = tf.keras.optimizers.Adam(self.hyper.learning_rate, clipnorm=0.5)
        self.adam.build(list(self.variables.values()))

    def update(self, rows):
        batch = rows.batch
        advantage = normalize_advantages(rows.rewards_to_go(self.hyper.gamma))
        variables = list(self.variables.values())
        with tf.GradientTape() as tape:
            features = graph.features(self.variables, tf.constant(rows.inputs.vector), list(map(tf.constant, rows.inputs.images)), self.arch, "actor")
            log_prob, entropy = graph.log_prob_and_entropy(
                self.variables, features, self.arch, tf.constant(batch.continuous), tf.constant(batch.discrete),
                action_mask=None if batch.action_mask is None else tf.constant(batch.action_mask))
            loss = -tf.reduce_mean(log_prob * advantage) - self.hyper.entropy * tf.reduce_mean(entropy)
        self.adam.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"Losses/Policy Loss": float(loss), "Policy/Entropy": float(tf.reduce_mean(entropy))}

    def policy_weights(self):
        return {name: variable.numpy() for name, variable in self.variables.items()}

    def state(self):
        return self.policy_weights() | {f"adam/{i}": np.asarray(variable) for i, variable in enumerate(self.adam.variables)}

    def load_state(self, arrays):
        for name, variable in self.variables.items():
            variable.assign(arrays[name])
        for i, variable in enumerate(self.adam.variables):
            variable.assign(arrays[f"adam/{i}"])
