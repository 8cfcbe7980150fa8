"""Curricula and samplers of ML-Agents, of files of their own and of sections, as ``environment_parameters``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raytrain.migrate_notes import Notes, whole
from raytrain.parameter_settings import ARGUMENTS
from raytrain.yaml_source import Document, KeyPath, unshared

_INTERVALS = ("resampling-interval", "episode-length")
_DEFAULTS = {"min_value": 0.0, "max_value": 1.0, "mean": 1.0, "st_dev": 1.0, "intervals": [[0.0, 1.0]]}
_PARAMETERS = "environment_parameters"


def is_curriculum(data: Any) -> bool:
    """Whether `data` is a curriculum file: a section per behavior with ``thresholds``, or one alone."""
    sections = list(data.values()) if isinstance(data, dict) else []
    return bool(sections) and ("thresholds" in data or all(isinstance(section, dict) and "thresholds" in section for section in sections))


def is_sampler(data: Any) -> bool:
    """Whether `data` is a sampler file: parameters with a ``sampler-type``."""
    sections = [value for key, value in data.items() if key not in _INTERVALS] if isinstance(data, dict) else []
    return bool(sections) and all(isinstance(section, dict) and "sampler-type" in section for section in sections)


def from_curriculum(data: dict[str, Any], document: Document, at: KeyPath, notes: Notes) -> dict[str, Any]:
    """The curricula of a file or section with one section per behavior.

    Args:
        data: behavior → its curriculum; or one curriculum, of the behavior that the file is named after.
        document: the file it is in.
        at: path of `data` there.
        notes: get a note for each parameter.

    Raises:
        ConfigError: a curriculum without thresholds, or whose parameters do not have one value more than there are thresholds.
    """
    found: dict[str, Any] = {}
    sections = {Path(document.name).stem: (data, at)} if "thresholds" in data else {name: (section, (*at, str(name))) for name, section in data.items()}
    for behavior, (section, below) in sections.items():
        place = (_PARAMETERS, str(behavior))
        notes.origins[place] = (document, below)
        thresholds, parameters = (section.get(key) if isinstance(section, dict) else None for key in ("thresholds", "parameters"))
        if not isinstance(thresholds, list) or not isinstance(parameters, dict):
            raise notes.refuse(place, section, "expected a curriculum with measure, thresholds (a list) and parameters (a section), received something else")
        for name, values in parameters.items():
            path = (_PARAMETERS, str(name))
            notes.origins[path] = (document, (*below, "parameters", str(name)))
            if not isinstance(values, list) or len(values) != len(thresholds) + 1:
                raise notes.refuse(path, values, f"expected a list of {len(thresholds) + 1} values, one more than thresholds, received {values!r:.80}")
            if name in found:
                notes.add("left out", path, f"{name} is in the curriculum of another behavior, too; that one stays")
                continue
            found[str(name)] = {"curriculum": _lessons(section, str(behavior), thresholds, values)}
            notes.add("changed", path, f"was a list of values in the curriculum of {behavior}")
            notes.once(path, (
                "all parameters of a behavior were in one lesson together; here each has lessons of its own, which end within an episode of each other. Every "
                "environment was reset when a lesson ended: for that add require_reset: true to completion_criteria"))
        del notes.origins[place]
    return found


def _lessons(section: dict[str, Any], behavior: str, thresholds: list[Any], values: list[Any]) -> list[dict[str, Any]]:
    criteria = {"measure": _measure(section.get("measure", "reward")), "behavior": behavior}
    criteria |= {key: whole(section[key]) for key in ("signal_smoothing", "min_lesson_length") if key in section}
    lessons: list[dict[str, Any]] = []
    for index, value in enumerate(values):
        lessons.append({"name": f"Lesson{index}", "value": value})
        if index < len(thresholds):
            lessons[-1]["completion_criteria"] = {**criteria, "threshold": thresholds[index]}
    return lessons


def from_sampler(data: dict[str, Any], document: Document, at: KeyPath, notes: Notes) -> dict[str, Any]:
    """The samplers of a file or section, each with its arguments beside ``sampler-type``."""
    found: dict[str, Any] = {}
    for name, section in data.items():
        path = (_PARAMETERS, str(name))
        notes.origins[path] = (document, (*at, str(name)))
        if name in _INTERVALS:
            notes.add("left out", path, f"{name}: {section}: parameters are drawn anew for each episode of each environment, not after a number of steps")
            del notes.origins[path]
        else:
            found[str(name)] = _sampler(section, path, notes)
    return found


def from_parameters(data: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """``environment_parameters`` of the later releases."""
    found: dict[str, Any] = {}
    for name, section in unshared(data).items():
        path = (_PARAMETERS, str(name))
        if isinstance(section, dict) and isinstance(section.get("curriculum"), list):
            section["curriculum"] = [_lesson(lesson, (*path, "curriculum", str(index)), notes) for index, lesson in enumerate(section["curriculum"])]
            found[str(name)] = section
        else:
            found[str(name)] = _sampler(section, path, notes)
    return found


def _lesson(lesson: Any, path: KeyPath, notes: Notes) -> Any:
    """A lesson with its name inside, where it once was the key."""
    if isinstance(lesson, dict) and len(lesson) == 1 and isinstance(inside := next(iter(lesson.values())), dict):
        name = str(next(iter(lesson)))
        notes.origins[path] = (notes.document, (*path, name))
        notes.add("moved", (*path, "name"), f"was the key {name}")
        lesson = {"name": name, **inside}
    if not isinstance(lesson, dict):
        return lesson
    if "value" in lesson:
        lesson["value"] = _sampler(lesson["value"], (*path, "value"), notes)
    criteria = lesson.get("completion_criteria")
    if isinstance(criteria, dict):
        measure = criteria.get("measure")
        if _measure(measure) != measure:
            criteria["measure"] = _measure(measure)
            notes.add("changed", (*path, "completion_criteria", "measure"), f"was {measure}")
        if "min_lesson_length" in criteria:
            criteria["min_lesson_length"] = whole(criteria["min_lesson_length"])
    return lesson


def _measure(measure: Any) -> Any:
    return measure.lower() if isinstance(measure, str) else measure


def _sampler(section: Any, path: KeyPath, notes: Notes) -> Any:
    """One sampler with every argument; a number stays one."""
    if not isinstance(section, dict):
        return section
    if "sampler-type" in section:
        arguments = {key: value for key, value in section.items() if key != "sampler-type"}
        section = {"sampler_type": section["sampler-type"], "sampler_parameters": arguments}
        notes.add("changed", (*path, "sampler_type"), "was sampler-type, with the arguments beside it")
    kind, arguments = section.get("sampler_type"), section.get("sampler_parameters")
    if kind == "multirange_uniform":
        section["sampler_type"] = kind = "multirangeuniform"
        notes.add("changed", (*path, "sampler_type"), "was called multirange_uniform")
    if not isinstance(arguments, dict):
        return section
    if "seed" in arguments:
        del arguments["seed"]
        notes.add("left out", (*path, "sampler_parameters", "seed"), "seed: every random stream comes from the seed of the run")
    for key in ARGUMENTS.get(kind, ()) if isinstance(kind, str) else ():
        if key not in arguments and key in _DEFAULTS:
            arguments[key] = _DEFAULTS[key]
            notes.add("added", (*path, "sampler_parameters", key), "the default of ML-Agents; here arguments have none")
    return section
