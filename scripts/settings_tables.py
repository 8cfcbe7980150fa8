#!/usr/bin/env python
"""The tables of keys in docs/configuration.md, written from the settings models: ``python scripts/settings_tables.py``.

Default, values and meaning are the models' own; what is said here is only which keys mean the same in ML-Agents.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from raytrain.evaluation_settings import EvaluationSettings
from raytrain.migrate_keys import BEHAVIOR, MEMORY, NETWORK, PPO, SAC, SIGNAL_NETWORK
from raytrain.parameter_settings import CriteriaSettings, LessonSettings, ParameterSettings, SamplerParameters, SamplerSettings
from raytrain.settings import CheckpointSettings, DistributedSettings, EnvSettings, RunConfig, StopSettings
from raytrain.writer_settings import WriterSettings
from trainers.bc_settings import BCHyperparameters
from trainers.own_settings import OwnHyperparameters
from trainers.self_play_settings import SelfPlaySettings
from trainers.setting_types import Settings
from trainers.settings import (
    BCSettings,
    MemorySettings,
    NetworkSettings,
    ObservationSettings,
    PPOHyperparameters,
    PPOSettings,
    SACHyperparameters,
)
from trainers.signal_settings import (
    BehavioralCloningSettings,
    CuriositySettings,
    ExtrinsicSettings,
    GAILSettings,
    OwnSignalSettings,
    RewardSignals,
    RNDSettings,
    SignalNetwork,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

SECTIONS: dict[str, type[Settings]] = {
    "At the top": RunConfig,
    "`behaviors` and `default_settings`": PPOSettings,
    "`hyperparameters` of `ppo`": PPOHyperparameters,
    "`hyperparameters` of `sac`": SACHyperparameters,
    "`hyperparameters` of a trainer of your own": OwnHyperparameters,
    "A behavior of `bc`": BCSettings,
    "`hyperparameters` of `bc`": BCHyperparameters,
    "`network_settings`": NetworkSettings,
    "`memory`": MemorySettings,
    "`observations`": ObservationSettings,
    "`reward_signals`": RewardSignals,
    "`extrinsic`": ExtrinsicSettings,
    "`curiosity`": CuriositySettings,
    "`rnd`": RNDSettings,
    "`gail`": GAILSettings,
    "`own`": OwnSignalSettings,
    "`network_settings` of a signal": SignalNetwork,
    "`behavioral_cloning`": BehavioralCloningSettings,
    "`self_play`": SelfPlaySettings,
    "`environment_parameters`": ParameterSettings,
    "`sampler_parameters`": SamplerParameters,
    "Lessons of a curriculum": LessonSettings,
    "`value` of a lesson": SamplerSettings,
    "`completion_criteria`": CriteriaSettings,
    "`env_settings`": EnvSettings,
    "`distributed`": DistributedSettings,
    "`checkpoint_settings`": CheckpointSettings,
    "`stop`": StopSettings,
    "`evaluation`": EvaluationSettings,
    "`writers`": WriterSettings,
}
"""Heading in docs/configuration.md → the model whose keys stand below it."""

SAME = "same"
MODEL_SIGNAL = dict.fromkeys(("strength", "gamma", "learning_rate"), SAME)
MLAGENTS: dict[type[Settings], dict[str, str]] = {
    RunConfig: {"debug": "log more"},
    PPOSettings: dict.fromkeys(BEHAVIOR, SAME) | {
        "trainer_type": "`ppo` and `sac` the same; `poca` is not here",
        "threaded": "the same, but `false` holds for the whole run",
        "keep_checkpoints": "snapshots of the behavior; here of the whole run",
    },
    PPOHyperparameters: dict.fromkeys(PPO, SAME) | {"beta": "the same with `entropy_reduction: mean`"},
    SACHyperparameters: dict.fromkeys(SAC, SAME) | {"init_entcoef": "the same; discrete branches are learnt towards 0.2·ln n there (`target_entropy_scale`)"},
    NetworkSettings: dict.fromkeys(NETWORK, SAME) | {"normalize": "the same; the first rows only initialise the statistics here"},
    MemorySettings: dict.fromkeys(MEMORY, SAME),
    ExtrinsicSettings: dict.fromkeys(("strength", "gamma"), SAME),
    RewardSignals: dict.fromkeys(("extrinsic", "curiosity", "rnd", "gail"), SAME),
    CuriositySettings: MODEL_SIGNAL,
    RNDSettings: MODEL_SIGNAL,
    GAILSettings: MODEL_SIGNAL | {"demo_path": "the same, relative to the working folder", "use_actions": SAME, "use_vail": SAME},
    SignalNetwork: dict.fromkeys(SIGNAL_NETWORK, SAME) | {"hidden_units": "the same; 128 by default"},
    BehavioralCloningSettings: {
        "demo_path": "the same, relative to the working folder",
        **dict.fromkeys(("strength", "steps", "batch_size", "num_epoch", "samples_per_update"), SAME),
    },
    SelfPlaySettings: {
        **dict.fromkeys(("save_steps", "team_change", "play_against_latest_model_ratio", "window", "initial_elo"), SAME),
        "swap_steps": "the same; 2,000 by default",
    },
    ParameterSettings: dict.fromkeys(("sampler_type", "sampler_parameters", "curriculum"), SAME),
    SamplerParameters: dict.fromkeys(("value", "min_value", "max_value", "mean", "st_dev", "intervals"), SAME),
    LessonSettings: dict.fromkeys(("name", "value", "completion_criteria"), SAME),
    SamplerSettings: dict.fromkeys(("sampler_type", "sampler_parameters"), SAME),
    CriteriaSettings: dict.fromkeys(("behavior", "measure", "threshold", "min_lesson_length", "signal_smoothing", "require_reset"), SAME),
    EnvSettings: {
        "num_envs": "the same; here of each env manager",
        "seed": SAME,
        "max_lifetime_restarts": "the same, of environments",
        "restarts_rate_limit_n": SAME,
        "restarts_rate_limit_period_s": SAME,
    },
    CheckpointSettings: {
        "run_id": "the same; `ppo` by default",
        "results_dir": SAME,
        "resume": SAME,
        "force": "writes into the former folder",
        "initialize_from": "a run of ML-Agents, whose weights cannot be read here",
    },
}
"""Model → key → what it means in ML-Agents; a key that is not here is none of ML-Agents'."""


ALL_TRAINERS = "`ppo`, `sac`, `bc`, `module:Class`, an installed name"  # each has a model of its own, which says only its own name


def is_section(name: str, model: type[Settings]) -> bool:
    """Whether a key holds a section, which has a heading of its own instead of a row."""
    return name in ("behaviors", "default_settings", "environment_parameters") or isinstance(model.model_fields[name].default, Settings)


def rows(model: type[Settings]) -> list[str]:
    """The table of one model, header included."""
    schema = model.model_json_schema()
    properties = next(part for part in (schema, *schema.get("anyOf", ())) if "properties" in part)["properties"]  # a sampler may be a number, too
    lines = ["| key | default | values | meaning | in ML-Agents |", "| --- | --- | --- | --- | --- |"]
    for name, field in model.model_fields.items():
        if is_section(name, model):
            continue
        default = "required" if field.is_required() else f"`{_default(field.default)}`"
        known = MLAGENTS.get(model, {}).get(name, "–")
        values = ALL_TRAINERS if (model, name) == (PPOSettings, "trainer_type") else _section(field.annotation) or _values(properties[name])
        lines.append(f"| `{name}` | {default} | {values} | {_meaning(field.description or '')} | {known} |")
    return lines


def page(text: str) -> str:
    """`text` with every table of keys as the models have it.

    Raises:
        ValueError: a heading, or the table below it, is not there.
    """
    for heading, model in SECTIONS.items():
        found = re.search(rf"^#+ {re.escape(heading)}\n(?:(?!^#).*\n)*?((?:^\|.*\n)+)", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"Expected a heading {heading!r} with a table below it in {PAGE.name}, found none; write the heading and `| key |`.")
        text = text[: found.start(1)] + "\n".join(rows(model)) + "\n" + text[found.end(1) :]
    return text


def _default(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return f"{value:_}" if value >= 10_000 else str(value)
    if isinstance(value, float):
        return re.sub(r"e-0", "e-", f"{value:g}") if 0.0 < abs(value) < 1e-3 else str(value)
    return {(): "[]", "{}": "{}"}.get(value if isinstance(value, tuple) else str(value), str(value))


def _section(annotation: Any) -> str:
    """A link to the section that a key holds, empty for a plain value."""
    for heading, model in SECTIONS.items():
        if model is not RunConfig and _holds(annotation, model):
            anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            before = "number or " if _holds(annotation, float) else "list of " if _holds(annotation, tuple) else "name → " if _holds(annotation, dict) else ""
            return f"{before}[section](#{anchor})"
    return ""


def _holds(annotation: Any, kind: type) -> bool:
    return annotation is kind or getattr(annotation, "__origin__", None) is kind or any(_holds(part, kind) for part in get_args(annotation))


def _values(schema: dict[str, Any]) -> str:
    """Type and limits, from a field's JSON Schema."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_values(part) for part in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind in ("integer", "number"):
        limits = " and ".join(f"{sign} {schema[key]:g}" for key, sign in LIMITS.items() if key in schema)
        return f"{'even' if schema.get('multipleOf') == 2 else 'whole' if kind == 'integer' else ''} number {limits}".strip()
    if kind == "array":
        return f"list of {_values(schema['items'])}" if schema.get("items") else "`[low, high]`" if "prefixItems" in schema else "list"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"name → {_values(inner)}" if isinstance(inner, dict) and inner else "mapping"
    return {"boolean": "`true`, `false`", "string": "text", "null": "`null`"}.get(kind, "any")


LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def _meaning(docstring: str) -> str:
    """A field's docstring as Markdown in one line of a table."""
    text = " ".join(docstring.split()).replace("``", "`").replace("|", "\\|")
    text = re.sub(r"https?://[^\s,;)]*[^\s,;).]", r"<\g<0>>", text)
    return re.sub(r"docs/(([\w-]+\.md)(?:#[\w-]+)?)", r"[\2](\1)", text)


def main() -> int:
    """Write the page; the exit code."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
