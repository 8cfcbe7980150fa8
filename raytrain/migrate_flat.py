"""A behavior of ML-Agents' flat form (releases up to 2), with every key side by side, in the nested form of the later releases."""

from __future__ import annotations

from typing import Any

from raytrain.migrate_keys import FLAT_BEHAVIOR, HYPERPARAMETERS, LEFT_OUT_FLAT, MEMORY, NETWORK, OLD_TRAINERS
from raytrain.migrate_notes import Notes, section_of, shown
from raytrain.suggest import nearest
from raytrain.yaml_source import KeyPath, unshared

_CURIOSITY = ("use_curiosity", "curiosity_strength", "curiosity_enc_size")
_RATES = ("train_interval", "num_update")
_HANDLED = ("trainer", "trainer_type", "gamma", "pretraining", "use_recurrent", *MEMORY, *_CURIOSITY, *_RATES)


class FlatBehavior:
    """One section, to be read once.

    Args:
        section: its keys, those of ``default`` included.
        origins: key → where it stands in the old file.
        own: the path of the section itself; keys from elsewhere get no note again.
        at: path of the behavior in the new configuration.
        agents: of all environments together, as far as the user has said so.
    """

    def __init__(self, section: dict[str, Any], origins: dict[str, KeyPath], own: KeyPath, at: KeyPath, notes: Notes, agents: int | None) -> None:
        self._section, self._origins, self._own, self._at, self._notes, self._agents = unshared(section), origins, own, at, notes, agents
        self._nested: dict[str, Any] = {}

    def nested(self) -> dict[str, Any]:
        """The nested form.

        Raises:
            ConfigError: a trainer that is gone, or reward signals that are no sections.
        """
        trainer = self._trainer()
        of_trainer = _hyperparameters(trainer)
        self._put(("trainer_type",), "trainer" if "trainer" in self._section else "trainer_type")
        for key in [key for key in self._section if key not in _HANDLED]:
            if key in of_trainer:
                self._put(("hyperparameters", key), key)
            elif key in NETWORK:
                self._put(("network_settings", key), key)
            elif key in FLAT_BEHAVIOR:
                self._put((key,), key)
            else:
                self._leave_out(key, trainer)
        self._memory()
        self._signals()
        if trainer == "sac":
            self._rates()
        else:
            for key in _RATES:
                self._leave_out(key, trainer)
            self._schedules()
        if "pretraining" in self._section:
            self._put(("behavioral_cloning",), "pretraining")
        return self._nested

    def _trainer(self) -> Any:
        trainer = self._section.get("trainer", self._section.get("trainer_type"))
        if isinstance(trainer, str) and trainer in OLD_TRAINERS:
            key = "trainer" if "trainer" in self._section else "trainer_type"
            self._notes.origins[(*self._at, "trainer_type")] = (self._notes.document, self._origins[key])
            raise self._notes.refuse((*self._at, "trainer_type"), trainer, f"expected trainer ppo or sac, received {trainer}, {OLD_TRAINERS[trainer]}")
        return trainer

    def _put(self, path: KeyPath, key: str) -> None:
        """Set `path` of the nested form to the value of the old `key`, where there is one."""
        if key not in self._section:
            return
        self._set(path, self._section[key])
        self._notes.origins[(*self._at, *path)] = (self._notes.document, self._origins[key])
        if path != (key,):
            self._note("moved", path, f"was {'.'.join(self._origins[key])}", key)

    def _set(self, path: KeyPath, value: Any) -> None:
        section = self._nested
        for key in path[:-1]:
            section = section.setdefault(key, {})
        section[path[-1]] = value

    def _note(self, kind: str, path: KeyPath, text: str, key: str) -> None:
        if self._is_own(key):
            self._notes.add(kind, (*self._at, *path), text, self._origins.get(key, self._own))

    def _is_own(self, key: str) -> bool:
        return self._origins.get(key, self._own)[: len(self._own)] == self._own

    def _leave_out(self, key: str, trainer: Any, why: str = "") -> None:
        if key not in self._section:
            return
        near = nearest(key.strip(": "), [*_hyperparameters(trainer), *NETWORK, *FLAT_BEHAVIOR, *_HANDLED], cutoff=0.8)
        other = next((name for name, keys in HYPERPARAMETERS.items() if key in (*keys, *(_RATES if name == "sac" else ()))), None)
        why = why or LEFT_OUT_FLAT.get(key, "") or (f"{trainer} has no {key}, it is a key of {other}" if other else "")
        why = why or "no key of ML-Agents, which passed over it in silence" + (f"; did you mean {near}?" if near else "")
        self._note("left out", (key,), f"{shown(key, self._section[key])}: {why}", key)

    def _memory(self) -> None:
        """``use_recurrent`` with its sizes is the section ``memory``."""
        is_recurrent = self._section.get("use_recurrent") is True
        if is_recurrent:
            path = ("network_settings", "memory")
            self._set(path, {})
            self._notes.origins[(*self._at, *path)] = (self._notes.document, self._origins["use_recurrent"])
            self._note("changed", path, "was use_recurrent: true; it is a section here", "use_recurrent")
            for key in MEMORY:
                self._put((*path, key), key)
            return
        if "use_recurrent" in self._section:
            self._note("left out", ("network_settings", "memory"), "use_recurrent: false: there is no memory without this section", "use_recurrent")
        for key in MEMORY:
            self._leave_out(key, None, "not used without use_recurrent: true")

    def _signals(self) -> None:
        """``gamma`` and ``use_curiosity`` of before 0.9 are reward signals; so are numbers beside the signals, which belong to SAC."""
        if "reward_signals" in self._section:
            signals = self._section["reward_signals"]
            if not isinstance(signals, dict):
                raise self._notes.refuse((*self._at, "reward_signals"), signals, (
                    "expected a section with one section for each signal, such as reward_signals: {extrinsic: {strength: 1.0, gamma: 0.99}}, "
                    f"received {signals!r:.60}"))
            for key in ("gamma", *_CURIOSITY):
                self._leave_out(key, None, "not read beside reward_signals, which have a gamma and a strength each")
            return
        gamma, made = self._section.get("gamma"), {}
        if gamma is not None:
            made["extrinsic"] = {"strength": 1.0, "gamma": gamma}
        if self._section.get("use_curiosity") is True:
            made["curiosity"] = {"strength": self._section.get("curiosity_strength", 0.01), "gamma": 0.99 if gamma is None else gamma,
                                 "encoding_size": self._section.get("curiosity_enc_size", 128)}
        else:
            for key in _CURIOSITY:
                self._leave_out(key, None, "no curiosity signal is used" if key == "use_curiosity" else "not used without use_curiosity: true")
        for name, signal in made.items():
            key = "gamma" if name == "extrinsic" else "use_curiosity"
            self._nested.setdefault("reward_signals", {})[name] = signal
            self._notes.origins[(*self._at, "reward_signals", name)] = (self._notes.document, self._origins[key])
            said = "gamma of the behavior" if name == "extrinsic" else "use_curiosity, curiosity_strength and curiosity_enc_size"
            self._note("changed", ("reward_signals", name), f"was {said}; each signal has a section of its own", key)

    def _rates(self) -> None:
        """Updates in blocks, one block each few steps of the environments, as agent steps per update."""
        signals = section_of(self._nested.get("reward_signals"))
        moved = "reward_signal_steps_per_update"
        if moved in signals:
            self._set(("hyperparameters", moved), signals.pop(moved))
            self._notes.origins[(*self._at, "hyperparameters", moved)] = (self._notes.document, (*self._origins["reward_signals"], moved))
            self._note("moved", ("hyperparameters", moved), f"was reward_signals.{moved}", "reward_signals")
        old = signals.pop("reward_signal_num_update", None)
        if "steps_per_update" in self._section:
            for key in _RATES:
                self._leave_out(key, None, "replaced by steps_per_update, which is there, too")
            return
        interval = self._section.get("train_interval", 1)
        if any(key in self._section for key in _RATES):
            source = next(key for key in _RATES if self._is_own(key) and key in self._section or key in self._section)
            self._rate("steps_per_update", interval, self._section.get("num_update", 1), "num_update", source)
        if old is not None:
            self._rate(moved, interval, old, "reward_signal_num_update", "reward_signals")

    def _rate(self, key: str, interval: Any, updates: Any, updates_key: str, source: str) -> None:
        path = ("hyperparameters", key)
        self._notes.origins[(*self._at, *path)] = (self._notes.document, self._origins[source])
        for name, value in (("train_interval", interval), (updates_key, updates)):
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise self._notes.refuse((*self._at, *path), value, f"expected a number > 0 for {name}, received {value!r}")
        agents = self._agents or 1
        self._set(path, agents * interval / updates)
        counted = f"{agents} agents" if self._agents else "1 agent; with more, multiply it by the agents of all environments together (raytrain migrate --agents N)"
        self._note("changed", path, (
            f"agents × train_interval / {updates_key} = {agents} × {interval:g} / {updates:g}: {updates_key} updates came each train_interval steps of the environments, "
            f"in each of which every agent makes one. Counted for {counted}"), source)

    def _schedules(self) -> None:
        """β and ε fell linearly whatever the learning rate did."""
        if self._section.get("learning_rate_schedule") != "constant":
            return
        for key in ("beta", "epsilon"):
            path = ("hyperparameters", f"{key}_schedule")
            self._set(path, "linear")
            if self._is_own("learning_rate_schedule"):
                self._notes.add("added", (*self._at, *path), f"{key} fell linearly there, whatever the learning rate did; here it follows the learning rate")


def _hyperparameters(trainer: Any) -> tuple[str, ...]:
    """Those of `trainer`; of an unknown one those of PPO, so that they stay until it is refused by name."""
    return HYPERPARAMETERS[trainer if trainer == "sac" else "ppo"]
