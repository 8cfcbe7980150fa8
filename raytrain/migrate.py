"""Configuration files of ML-Agents, of every era, as configurations of raytrain, with a note for every change.

The eras: *flat* (up to 0.16): a section per behavior, ``default:`` below them all, curricula and samplers in files of their own; *releases 1–2*: the
same sections in ``behaviors:``; *nested* (releases 3 to 22). Source: docs/Training-Configuration-File.md and docs/Migrating.md of Unity ML-Agents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raytrain import migrate_keys as keys
from raytrain.errors import ConfigError, Problem
from raytrain.migrate_behavior import NestedBehavior, without_inherited
from raytrain.migrate_flat import FlatBehavior
from raytrain.migrate_lessons import from_curriculum, from_parameters, from_sampler, is_curriculum, is_sampler
from raytrain.migrate_notes import Note, Notes, paths_of, shown, whole
from raytrain.migrate_text import summary_lines
from raytrain.settings import RunConfig, RunId
from raytrain.yaml_source import Document, KeyPath, unshared
from trainers.settings import SETTINGS_BY_TRAINER, NetworkSettings

FLAT, FLAT_IN_BEHAVIORS, NESTED = "flat, up to 0.16", "flat below behaviors, releases 1 and 2", "nested, releases 3 to 22"

OURS = frozenset(RunConfig.model_fields) - set(keys.TOP)
"""Keys at the top that files of ML-Agents do not have."""
_OURS_BELOW = {
    (): {*(name for settings in SETTINGS_BY_TRAINER.values() for name in settings.model_fields)} - set(keys.BEHAVIOR),
    ("hyperparameters",): {*(name for settings in SETTINGS_BY_TRAINER.values() for name in settings.model_fields["hyperparameters"].annotation.model_fields)}
    - {*keys.PPO, *keys.SAC},
    ("network_settings",): set(NetworkSettings.model_fields) - set(keys.NETWORK),
}


@dataclass(frozen=True)
class Migration:
    """A migrated file.

    Attributes:
        era: which of the forms the file has.
        document: the new configuration, with the lines of the old file.
        notes: one for every change, in the order of the new configuration.
    """

    era: str
    document: Document
    notes: list[Note]


def era_of(data: Any, with_ours: bool = False) -> str:
    """Which form of ML-Agents' files `data` has; empty for anything else.

    Args:
        data: a whole file.
        with_ours: also if keys of raytrain stand in it (``env`` above an old file).
    """
    if not isinstance(data, dict) or (not with_ours and any(key in OURS for key in data)):
        return ""
    if "behaviors" in data or "default_settings" in data:
        behaviors = data.get("behaviors")
        sections = [*(behaviors.values() if isinstance(behaviors, dict) else ()), data.get("default_settings")]
        sections = [section for section in sections if isinstance(section, dict)]
        if any(map(_is_flat_in_behaviors, sections)):
            return FLAT_IN_BEHAVIORS
        return "" if not with_ours and any(map(_is_ours, sections)) else NESTED
    return FLAT if any(_is_flat(section) for section in data.values()) else ""


def _is_flat(section: Any) -> bool:
    return isinstance(section, dict) and (isinstance(section.get("trainer"), str) or len(keys.MARKS_OF_FLAT & set(section)) >= 2)


def _is_flat_in_behaviors(section: Any) -> bool:
    return isinstance(section, dict) and bool(set(section) & keys.IN_SECTIONS) and not set(section) & {"trainer_type", "hyperparameters", "network_settings"}


def _is_ours(section: dict[str, Any]) -> bool:
    """Whether a behavior has keys of raytrain's own, or an algorithm of its own."""
    if section.get("trainer_type") == "bc":
        return True
    below = {path: section if not path else section.get(path[0]) for path in _OURS_BELOW}
    return any(isinstance(found, dict) and set(found) & _OURS_BELOW[path] for path, found in below.items())


def migrate(
    document: Document, curriculum: Document | None = None, sampler: Document | None = None, agents: int | None = None, with_ours: bool = False,
) -> Migration:
    """Migrate a file that was read.

    Args:
        document: the file, which is left as it is.
        curriculum, sampler: files that were given beside it (``--curriculum``, ``--sampler``) up to 0.16.
        agents: of all environments together; needed where updates were counted in steps of the environments.
        with_ours: see `era_of`.

    Raises:
        ConfigError: a file of another kind, or something in it that has no counterpart here.
    """
    era = era_of(document.data, with_ours)
    if not era:
        raise ConfigError([Problem("", None, None, _not_one(document.data))], document.name)
    return _FileMigration(document, era, agents).run(curriculum, sampler)


def _not_one(data: Any) -> str:
    expected = "expected a configuration of ML-Agents: behaviors: with a section for each, or (up to 0.16) a section for each at the top, with trainer: ppo or sac"
    for kind, option, found in (("a curriculum", "--curriculum", is_curriculum(data)), ("a sampler", "--sampler", is_sampler(data))):
        if found:
            return f"{expected}; received {kind} file, which is given beside it: raytrain migrate FILE {option} THIS_FILE"
    if not isinstance(data, dict):
        return f"{expected}; received {'an empty file' if data is None else type(data).__name__}"
    return f"{expected}; received the keys {', '.join(map(str, list(data)[:6])) or 'of none'}"


class _FileMigration:
    """One file under way."""

    def __init__(self, document: Document, era: str, agents: int | None) -> None:
        self._old, self._era, self._agents = document, era, agents
        self._notes, self._new = Notes(document), {}

    def run(self, curriculum: Document | None, sampler: Document | None) -> Migration:
        data = self._old.data
        self._new |= {str(key): unshared(value) for key, value in data.items() if key in OURS}
        if self._era == FLAT:
            self._flat({str(key): section for key, section in data.items() if key not in OURS})
        else:
            self._nested_file(data)
        self._parameters(curriculum, sampler)
        lines = self._notes.lines(self._new)
        notes = self._notes_in_order()
        return Migration(self._era, Document(self._old.name, self._new, lines, messages=summary_lines(self._era, notes)), notes)

    def _notes_in_order(self) -> list[Note]:
        """Those about what is there, or was left out; what a behavior only inherits is said once, above."""
        order = {".".join(path): index for index, path in enumerate(paths_of(self._new))}
        kept = [note for note in self._notes.found if note.kind == "left out" or note.path in order]

        def position(note: Note) -> int:
            names = note.path.split(".")
            above = (".".join(names[:length]) for length in range(len(names), 0, -1))
            return next((order[path] for path in above if path in order), len(order))

        return sorted(kept, key=position)

    def _flat(self, sections: dict[str, Any]) -> None:
        """Behaviors at the top, with what is below them all."""
        default = sections.pop("default", None)
        base: dict[str, Any] = {}
        if isinstance(default, dict):
            base = self._flat_behavior(default, {key: ("default", str(key)) for key in default}, ("default",), ("default_settings",))
            self._new["default_settings"] = base
            self._notes.add("moved", ("default_settings",), "was called default")
        inherited = default if isinstance(default, dict) else {}
        for name, section in sections.items():
            path = ("behaviors", name)
            self._notes.origins[path] = (self._old, (name,))
            section = self._followed(name, section, sections, path)
            origins = {key: ("default", str(key)) for key in inherited} | {key: (name, str(key)) for key in section}
            resolved = self._flat_behavior({**inherited, **section}, origins, (name,), path)
            is_same = resolved.get("trainer_type") == base.get("trainer_type")
            below = base if is_same else {key: value for key, value in base.items() if key != "hyperparameters"}
            self._new.setdefault("behaviors", {})[name] = without_inherited(resolved, below)

    def _followed(self, name: str, section: Any, sections: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
        """A section, or the one that it names in its place."""
        seen = [name]
        while isinstance(section, str):
            if section not in sections or section in seen:
                raise self._notes.refuse(path, section, f"expected a section of keys or the name of another one ({', '.join(sections)}), received {section}")
            self._notes.add("changed", path, f"was another name for {section}, whose keys are repeated here")
            seen.append(section)
            section = sections[section]
        if not isinstance(section, dict):
            raise self._notes.refuse(path, section, "expected a section of keys, received "
                                     + ("an empty section; remove it" if section is None else f"{section!r:.80}"))
        return section

    def _flat_behavior(self, section: dict[str, Any], origins: dict[str, KeyPath], own: KeyPath, path: KeyPath) -> dict[str, Any]:
        self._notes.origins[path] = (self._old, own)
        nested = FlatBehavior(section, origins, own, path, self._notes, self._agents).nested()
        return NestedBehavior(nested, path, self._notes, is_flat=True).migrated()

    def _nested_file(self, data: dict[str, Any]) -> None:
        """Files with ``behaviors:``; keys that ML-Agents does not have stay, to be refused by name."""
        default, behaviors = data.get("default_settings"), data.get("behaviors")
        if behaviors is not None:
            self._new["behaviors"] = {} if isinstance(behaviors, dict) else behaviors
        if isinstance(default, dict):
            self._new = {"default_settings": NestedBehavior(default, ("default_settings",), self._notes, is_flat=False).migrated(), **self._new}
        elif "default_settings" in data:
            self._notes.add("left out", ("default_settings",), "default_settings: null is the default")
        for name, section in behaviors.items() if isinstance(behaviors, dict) else ():
            path = ("behaviors", str(name))
            if _is_flat_in_behaviors(section):
                section = self._flat_behavior(section, {key: (*path, str(key)) for key in section}, path, path)
            elif isinstance(section, dict):
                section = NestedBehavior(section, path, self._notes, False, default).migrated()
            self._new["behaviors"][str(name)] = section
        for section, reason in keys.LEFT_OUT_TOP.items():
            if section in data:
                self._notes.add("left out", (section,), f"{section}: {reason}")
        self._section(data, "env_settings", keys.LEFT_OUT_ENV)
        self._section(data, "checkpoint_settings", keys.LEFT_OUT_CHECKPOINT)
        known = {*keys.TOP, *OURS}
        self._new |= {str(key): unshared(value) for key, value in data.items() if key == "debug" or key not in known}

    def _section(self, data: dict[str, Any], name: str, reasons: Mapping[str, str]) -> None:
        section = data.get(name)
        if not isinstance(section, dict):
            if name in data and section is not None:
                self._new[name] = section
            return
        kept = {}
        for key, value in section.items():
            if key in reasons:
                self._notes.add("left out", (name, str(key)), f"{shown(str(key), value)}: {reasons[key]}")
            elif key == "run_id" and (value in (None, "ppo") or not _is_run_id(value)):
                self._notes.add("left out", (name, key), f"run_id: {value}: without one each run gets a new one, so that none is refused because a former one has its name")
            elif value is None:
                self._notes.add("left out", (name, str(key)), f"{key}: null is the default")
            else:
                kept[str(key)] = whole(value) if key in keys.WHOLE else value
        if "num_envs" in kept:
            self._notes.once((name, "num_envs"), "environments of each env manager; distributed.num_env_managers is how many processes there are")
        if kept:
            self._new[name] = kept

    def _parameters(self, curriculum: Document | None, sampler: Document | None) -> None:
        """Curricula win over samplers, as they did."""
        data, found = self._old.data, {}
        given = data.get("environment_parameters") if self._era != FLAT else None
        if isinstance(given, dict):
            found |= from_parameters(given, self._notes)
        elif given is not None:
            self._new["environment_parameters"] = given
            return
        inside = {} if self._era == FLAT else data
        for section, file, made in (("parameter_randomization", sampler, from_sampler), ("curriculum", curriculum, from_curriculum)):
            if isinstance(inside.get(section), dict):
                found |= made(inside[section], self._old, (section,), self._notes)
            elif inside.get(section) is not None:
                self._new[section] = inside[section]
            if file is not None:
                if not isinstance(file.data, dict) or not (is_sampler if made is from_sampler else is_curriculum)(file.data):
                    kind = "sampler file: parameters with a sampler-type each" if made is from_sampler else "curriculum file: behaviors with measure, thresholds and parameters"
                    raise ConfigError([Problem("", None, None, f"expected a {kind}; received something else")], file.name)
                found |= made(file.data, file, (), self._notes)
        if found:
            self._new["environment_parameters"] = found


def _is_run_id(value: Any) -> bool:
    return isinstance(value, str) and re.match(RunId.__metadata__[0].pattern, value) is not None
