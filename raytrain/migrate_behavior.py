"""A behavior of ML-Agents' nested form (releases 3 to 22) as raytrain has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raytrain.migrate_keys import LEFT_OUT, LEFT_OUT_NETWORK, SIGNAL_NETWORK, WHOLE
from raytrain.migrate_notes import Notes, section_of, shown, whole
from raytrain.yaml_source import KeyPath, unshared
from trainers.signal_settings import SignalNetwork

_MODEL_SIGNALS = {"curiosity": 128, "gail": 64, "rnd": 128}
"""Signals with networks → their width in the flat form; in the nested form it was that of all networks."""
_NESTED_WIDTH = 128

_MEANINGS = {
    ("hyperparameters", "init_entcoef"): "only where the entropy coefficient begins, as there; what it is learnt towards differs for discrete actions: "
                                         "0.7·ln n here, 0.2·ln n there (hyperparameters.target_entropy_scale)",
    ("hyperparameters", "buffer_init_steps"): "steps before updates are counted: no burst makes up for them",
    ("network_settings", "memory"): "memory_size counts cell state and output together, half each; sequences are padded at their end and never cross episodes",
    ("keep_checkpoints",): "a checkpoint is a snapshot of the whole run, and the best one is kept besides these",
    ("self_play",): "the agents' sides are named by behaviors.<name>.team in worlds of one behavior; nothing is reset at a team change (docs/self-play.md)",
}
"""Path in a behavior → what the same line does differently here."""


class NestedBehavior:
    """One behavior, or ``default_settings``.

    Args:
        section: its keys in the nested form.
        at: its path in the new configuration.
        is_flat: it comes from the flat form, whose defaults were others.
        inherited: what `section` lies above, the same of ``default_settings`` in the old file, still to be merged.
    """

    def __init__(self, section: Mapping[str, Any], at: KeyPath, notes: Notes, is_flat: bool, inherited: Any = None) -> None:
        self._data, self._at, self._notes, self._is_flat = unshared(section), at, notes, is_flat
        self._inherited = inherited if isinstance(inherited, Mapping) else {}

    def migrated(self) -> dict[str, Any]:
        """The behavior as raytrain has it."""
        data = self._data
        self._checkpoints()
        self._leave_out((), LEFT_OUT)
        self._whole_numbers(data)
        if isinstance(data.get("network_settings"), dict):
            self._leave_out(("network_settings",), LEFT_OUT_NETWORK)
            self._memory(data["network_settings"].get("memory"))
        if isinstance(data.get("reward_signals"), dict):
            self._signals(data["reward_signals"])
        if isinstance(data.get("behavioral_cloning"), dict):
            self._without_nulls(("behavioral_cloning",), ("num_epoch", "batch_size"))
        if isinstance(data.get("self_play"), dict):
            self._self_play(data["self_play"])
        self._of_trainer(data.get("trainer_type", self._inherited.get("trainer_type")))
        self._meanings()
        return data

    def _note(self, kind: str, path: KeyPath, text: str) -> None:
        self._notes.add(kind, (*self._at, *path), text)

    def _rename(self, section: dict[str, Any], above: KeyPath, old: str, new: str) -> None:
        if old in section:
            self._notes.origins[(*self._at, *above, new)] = self._notes.origin((*self._at, *above, old))
            section[new] = section.pop(old)
            self._note("moved", (*above, new), f"was called {old}")

    def _leave_out(self, above: KeyPath, reasons: Mapping[str, str]) -> None:
        section = self._data
        for key in above:
            section = section[key]
        for key in [key for key in section if key in reasons]:
            self._note("left out", (*above, key), f"{shown(key, section.pop(key))}: {reasons[key]}")

    def _without_nulls(self, above: KeyPath, keys: tuple[str, ...]) -> None:
        section = self._data
        for key in above:
            section = section[key]
        for key in keys:
            if key in section and section[key] is None:
                del section[key]
                self._note("left out", (*above, key), f"{key}: null is the default")

    def _checkpoints(self) -> None:
        """``even_checkpoints`` spread ``keep_checkpoints`` of them over the run."""
        if self._data.get("even_checkpoints", self._inherited.get("even_checkpoints")) is not True:
            return
        most, kept = (self._data.get(key, self._inherited.get(key, default)) for key, default in (("max_steps", 500_000), ("keep_checkpoints", 5)))
        if all(isinstance(number, int | float) and number >= 1 for number in (most, kept)):
            self._notes.origins[(*self._at, "checkpoint_interval")] = self._notes.origin((*self._at, "even_checkpoints"))
            self._data["checkpoint_interval"] = max(1, int(most / kept))
            self._note("changed", ("checkpoint_interval",), "max_steps / keep_checkpoints, which even_checkpoints: true meant")
            self._data.pop("even_checkpoints", None)

    def _whole_numbers(self, section: dict[str, Any]) -> None:
        for key, value in section.items():
            if isinstance(value, dict):
                self._whole_numbers(value)
            elif key in WHOLE:
                section[key] = whole(value)

    def _memory(self, memory: Any) -> None:
        if not isinstance(memory, dict):
            return
        for key, smallest, step in (("sequence_length", 2, 1), ("memory_size", 2, 2)):
            value = memory.get(key)
            if isinstance(value, int) and (value < smallest or value % step):
                memory[key] = max(smallest, -(-value // step) * step)
                self._note("changed", ("network_settings", "memory", key), f"was {value}; expected {'an even number' if step == 2 else 'at least 2'} here")

    def _signals(self, signals: dict[str, Any]) -> None:
        if "extrinsic" not in signals and "extrinsic" not in section_of(self._inherited.get("reward_signals")):
            signals["extrinsic"] = {"strength": 0.0}
            self._note("added", ("reward_signals", "extrinsic"), "without this section the reward of the environment was not learnt from; here it always is")
        for name, signal in signals.items():
            if not isinstance(signal, dict):
                continue
            path = ("reward_signals", name)
            if name in _MODEL_SIGNALS:
                self._signal_network(name, signal)
            elif "network_settings" in signal:
                del signal["network_settings"]
                self._note("left out", (*path, "network_settings"), f"network_settings: the {name} signal has no networks")
            if "demo_path" in signal:
                self._notes.once((*self._at, *path, "demo_path"), "looked for beside this file (or in import_from), not in the working folder")

    def _signal_network(self, name: str, signal: dict[str, Any]) -> None:
        path = ("reward_signals", name)
        size = signal.pop("encoding_size", None)
        network = signal.get("network_settings")
        if isinstance(network, dict):
            for key in [key for key in network if key not in SIGNAL_NETWORK]:
                self._note("left out", (*path, "network_settings", key), f"{shown(key, network.pop(key))}: the networks of signals have no such key; they take observations in "
                           "as network_settings of the behavior say")
            if "hidden_units" in network:
                return
        if network is not None and not isinstance(network, dict):
            return
        place = {} if network is None else network
        if size is not None:
            self._notes.origins[(*self._at, *path, "network_settings", "hidden_units")] = self._notes.origin((*self._at, *path, "encoding_size"))
            signal["network_settings"] = {**place, "hidden_units": whole(size)}
            self._note("moved", (*path, "network_settings", "hidden_units"), "was called encoding_size")
            return
        below = section_of(section_of(self._inherited.get("reward_signals")).get(name))
        if "encoding_size" in below or "hidden_units" in section_of(below.get("network_settings")):
            return
        signal["network_settings"] = {**place, "hidden_units": _MODEL_SIGNALS[name] if self._is_flat else _NESTED_WIDTH}
        ours = SignalNetwork.model_fields["hidden_units"].default
        self._note("added", (*path, "network_settings", "hidden_units"), f"the default of ML-Agents; here it is {ours}")

    def _self_play(self, section: dict[str, Any]) -> None:
        self._rename(section, ("self_play",), "play_against_current_self_ratio", "play_against_latest_model_ratio")
        inherited = section_of(self._inherited.get("self_play"))
        if not self._is_flat and "swap_steps" not in section and "swap_steps" not in inherited:
            section["swap_steps"] = 2000
            self._note("added", ("self_play", "swap_steps"), "the default of ML-Agents; here it is 20,000")
        change, most = section.get("team_change"), self._data.get("max_steps", self._inherited.get("max_steps", 500_000))
        if isinstance(change, int | float) and isinstance(most, int | float) and change > most:
            section["team_change"] = None
            self._note("changed", ("self_play", "team_change"), f"was {change:g}, above max_steps, so that one team alone would ever have learnt; null is 5 × save_steps")

    def _of_trainer(self, trainer: Any) -> None:
        values = self._data.get("hyperparameters")
        if trainer == "sac" and isinstance(values, dict):
            signals = section_of(self._inherited.get("reward_signals")) | section_of(self._data.get("reward_signals"))
            models = [name for name in signals if name != "extrinsic"]
            if "reward_signal_steps_per_update" in values and not models:
                text = shown("reward_signal_steps_per_update", values.pop("reward_signal_steps_per_update"))
                self._note("left out", ("hyperparameters", "reward_signal_steps_per_update"), f"{text}: the extrinsic signal has no network to update")
        is_base = not self._inherited or self._inherited.get("trainer_type", "ppo") != (trainer or "ppo")
        if (trainer in ("ppo", None)) and is_base and isinstance(self._data.setdefault("hyperparameters", {}), dict):
            self._data["hyperparameters"]["entropy_reduction"] = "mean"
            self._note("added", ("hyperparameters", "entropy_reduction"), "so that beta means the same: ML-Agents takes the mean over action dimensions, raytrain their sum")

    def _meanings(self) -> None:
        for path, text in _MEANINGS.items():
            value: Any = self._data
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                self._notes.once((*self._at, *path), text)
        if isinstance(self._data.get("network_settings"), dict) and self._data["network_settings"].get("normalize") is True:
            self._notes.once((*self._at, "network_settings", "normalize"), "vectors to ±5 by statistics that travel with the policy; the first rows only initialise them")
        if self._data.get("threaded") is False:
            self._notes.once((*self._at, "threaded"), "makes the whole run lock-step: environments wait for every update, as there without threads; remove it, and they step meanwhile")
        if self._is_flat and "max_steps" in self._data:
            self._notes.once((*self._at, "max_steps"), "agent steps of the behavior in all environments, as since 0.14; before, steps of the environment")


def without_inherited(own: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """What `own` has to say above `base`, so that both merged section by section are `own`; what only `base` has is null there."""
    left: dict[str, Any] = {}
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            if below := without_inherited(value, base[key]):
                left[key] = below
        elif key not in base or value != base[key]:
            left[key] = value
    for key in [key for key in base if key not in own]:
        if key in _NULLABLE:
            left[key] = None
        elif isinstance(base[key], dict) and (below := without_inherited({}, base[key])):
            left[key] = below
    return left


_NULLABLE = frozenset({"memory", "curiosity", "rnd", "gail", "behavioral_cloning", "self_play", "team_change", "beta_schedule", "epsilon_schedule",
                       "reward_signal_steps_per_update"})
