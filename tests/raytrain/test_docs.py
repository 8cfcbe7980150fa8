"""What README and docs promise, checked against the code: files load, keys and defaults are documented, links lead somewhere."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "scripts")]

import settings_tables
import yaml
from settings_tables import MLAGENTS, SECTIONS, is_section

from raytrain.cli import COMMANDS
from raytrain.config import load_config
from raytrain.migrate_keys import BEHAVIOR, MEMORY, NETWORK
from raytrain.migrate_keys import PPO as PPO_KEYS
from raytrain.migrate_keys import SAC as SAC_KEYS
from raytrain.settings import RunConfig
from raytrain.suggest import NOT_AVAILABLE
from raytrain.yaml_source import parse_value
from trainers.architecture import SMALLEST_SIDE
from trainers.setting_types import Settings
from trainers.settings import (
    BehaviorSettings,
    MemorySettings,
    NetworkSettings,
    ObservationSettings,
    OwnTrainerSettings,
    PPOHyperparameters,
    PPOSettings,
    SACSettings,
)
from trainers.signal_settings import ExtrinsicSettings, ModelSignalSettings, SignalSettings

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.glob("*.md"))]
CONFIGURATION = (DOCS / "configuration.md").read_text(encoding="utf-8")
PPO = (DOCS / "ppo.md").read_text(encoding="utf-8")
SPACES = (DOCS / "spaces.md").read_text(encoding="utf-8")


def below(text: str, heading: str) -> str:
    """What stands between a heading and the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"no heading {heading!r}"
    return found[1]


def table(text: str) -> dict[str, str]:
    """Key -> default, of a table whose rows begin with ``| `key` | default |``."""
    return dict(re.findall(r"^\| `([\w.]+)` \| `?([^|`]*)`? \|", text, re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("heading", "model"), SECTIONS.items(), ids=[model.__name__ for model in SECTIONS.values()])
def test_every_key_is_documented_with_its_default(heading, model):
    rows = table(below(CONFIGURATION, heading))
    sections = {name for name in model.model_fields if is_section(name, model)}
    assert set(rows) == set(model.model_fields) - sections
    for name in sections:
        assert re.search(rf"^#+ .*`{name}`", CONFIGURATION, re.MULTILINE), f"no heading for the section {name}"
    for name, default in rows.items():
        field = model.model_fields[name]
        expected = list(field.default) if isinstance(field.default, tuple) else field.default
        assert default == "required" if field.is_required() else parse_value(default) == expected, name


def test_the_tables_of_keys_are_those_of_the_models():
    """Written by `python scripts/settings_tables.py`: defaults, values and meanings stand in the models only."""
    assert settings_tables.page(CONFIGURATION) == CONFIGURATION


def test_every_key_has_a_meaning():
    missing = [(model.__name__, name) for model in SECTIONS.values() for name, field in model.model_fields.items() if not (field.description or "").strip(".")]
    assert missing == []


def test_what_is_said_of_ml_agents_is_said_of_keys_that_are_there():
    names = {model: set(keys) for model, keys in MLAGENTS.items()}
    of_migrate = {*BEHAVIOR, *PPO_KEYS, *SAC_KEYS, *NETWORK, *MEMORY, "extrinsic"}  # these lists hold keys that have no place here, too
    assert [(model.__name__, key) for model, keys in names.items() for key in keys - set(model.model_fields) - of_migrate] == []


def types_in(annotation):
    """A declared type and all that it is made of."""
    return [annotation, *(inner for part in get_args(annotation) for inner in types_in(part))]


def test_every_setting_has_a_table():
    """A model that is added to the settings must be added to SECTIONS, and so to the page."""
    found, models = set(), [RunConfig]
    while models:
        model = models.pop()
        found.add(model)
        for field in model.model_fields.values():
            models += [inner for inner in types_in(field.annotation) if isinstance(inner, type) and issubclass(inner, Settings)]
    # The table of a behavior stands for every trainer: their settings differ in trainer_type and hyperparameters only.
    assert found - {SACSettings, OwnTrainerSettings, BehaviorSettings, SignalSettings, ModelSignalSettings} == set(SECTIONS.values())


def test_the_algorithm_page_has_every_hyperparameter_with_its_default():
    """Of the network settings some; docs/spaces.md has all of them."""
    rows = {name: parse_value(default) for name, default in table(below(PPO, "Hyperparameters")).items()}
    network = {f"network_settings.{name}": field.default for name, field in NetworkSettings.model_fields.items()}
    assert len(network.keys() & rows) >= 4
    expected = {name: field.default for name, field in PPOHyperparameters.model_fields.items()}
    expected |= {f"reward_signals.extrinsic.{name}": field.default for name, field in ExtrinsicSettings.model_fields.items()}
    expected |= {name: PPOSettings.model_fields[name].default for name in ("time_horizon", "max_steps")}
    assert rows == expected | {name: network[name] for name in network.keys() & rows}


def test_the_page_of_spaces_has_every_key_that_it_is_about():
    for model in (NetworkSettings, MemorySettings, ObservationSettings):
        assert [name for name in model.model_fields if not re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", SPACES)] == []


def test_the_page_of_spaces_has_the_smallest_images():
    rows = re.findall(r"^\| `(\w+)` \| (\d+) × \2 \|", SPACES, re.MULTILINE)
    assert {name: int(side) for name, side in rows} == SMALLEST_SIDE


def test_the_algorithm_page_has_every_tag_that_the_trainer_logs():
    code = (REPOSITORY / "trainers" / "ppo.py").read_text(encoding="utf-8")
    logged = set(re.findall(r'f?"((?:Policy|Losses)/[^"]+)"', code.replace("{title(name)}", "Extrinsic")))
    rows = [row.split(" | ")[0] for row in below(PPO, "Metrics").splitlines() if row.startswith("| `")]
    assert {tag for row in rows for tag in re.findall("`([^`]+)`", row)} == logged


def test_every_key_that_is_refused_by_name_is_documented():
    page = (DOCS / "migration.md").read_text(encoding="utf-8")
    missing = [key for key in NOT_AVAILABLE if f"`{key}`" not in page and f"`trainer_type: {key}`" not in page]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_relative_links_lead_somewhere(page):
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("path", sorted((REPOSITORY / "yaml" / "ppo").glob("*.yaml")), ids=lambda path: path.stem)
def test_ready_made_files_load_and_are_named_where_they_are_listed(path):
    assert load_config(path).warnings() == []
    listed = PPO + SPACES + "".join((DOCS / f"{page}.md").read_text(encoding="utf-8") for page in ("reward-signals", "imitation", "multi-agent", "self-play", "curriculum"))
    assert re.search(rf"\b{re.escape(path.stem)}\b[^-]", listed)


def test_this_module_loads_neither_ray_nor_tensorflow():
    code = "import sys, tests.raytrain.test_docs; print([m for m in ('ray', 'tensorflow', 'keras') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["evaluate", "play", "resume", "list", "compare", "tune", "check-env", "completion"])
def test_every_option_of_the_commands_is_documented(command):
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser(add_help=False)
    import_module(f"raytrain.command_{command.replace('-', '_')}").add_arguments(parser)
    options = [option for action in parser._actions for option in action.option_strings]
    section = re.search(rf"^## `{command}`\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)[1]
    assert [option for option in options if option not in section and option != "--import-dir"] == []
    assert command in COMMANDS


def test_the_cluster_file_of_this_machine_ends_no_other_ray():
    """Ray's own commands for such a cluster begin with 'ray stop', which ends every Ray of the machine; the file has to replace both lists."""
    file = yaml.safe_load((REPOSITORY / "yaml" / "cluster" / "local-ssh.yaml").read_text())
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert isinstance(file[key], list) and not any("ray stop" in command for command in file[key]), key
    assert file["provider"]["worker_ips"] == []
