"""The code blocks of README.md and docs/, and what is done with each: nothing that is shown may be untried, or untried without a reason."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


@dataclass(frozen=True)
class Block:
    """One fenced block: its page, its language (empty for none), its number among those of that language on the page, and its text."""

    page: str
    language: str
    number: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}-{self.number}"


def _blocks(page: Path) -> list[Block]:
    found, counts = [], {}
    for language, text in re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        found.append(Block(page.stem, language, counts.get(language, 0), text))
        counts[language] = counts.get(language, 0) + 1
    return found


BLOCKS = [block for page in PAGES for block in _blocks(page)]


def of(language: str) -> list[Block]:
    """All blocks of a language."""
    return [block for block in BLOCKS if block.language == language]


def commands(block: Block) -> list[str]:
    """The command lines of a bash block: one for each part of ``a && b``, continued lines as one, without comments and redirections."""
    lines = block.text.replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in line.split(" && ")]
    return [text for part in parts if (text := " ".join(shlex.quote(word) for word in _words(part)))]


def _words(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    words = words[: words.index(">")] if ">" in words else words
    return ["raytrain", *words[1:]] if words and words[0].endswith("/raytrain") else words


NOT_RUN = {
    "python3 -m venv": "the README's test command is run by CI as it stands",
    ". .venv/bin/activate": "of a shell",
    ".venv/bin/pip install": "run by CI with the README's test command",
    "pip install": "installs packages",
    ".venv/bin/python -m pytest": "would run this test again; CI runs it",
    ".venv/bin/tensorboard": "a server that does not end",
    "python -c 'import secrets": "makes the token of a cluster, as below",
    "chmod 600 raytrain.token": "as above",
    "ray up": "a cluster; tests/cluster/test_ssh.py runs the commands of the local one",
    "ray submit": "a cluster, as above",
    "ray dashboard": "a cluster, as above",
    "RAY_AUTH_MODE=token": "a cluster, as above",
    "python scripts/ssh_cluster.py": "a cluster, as above",
    "python scripts/results.py": "trains for many minutes; tests/scripts/test_results.py checks its options",
    "raytrain record --keyboard": "asks for keys; its options are checked below",
    "raytrain scale": "needs a run that is going; tests/cluster/test_restarts.py scales one",
    "raytrain play results/cartpole --episodes 3": "opens a window; recording a video is run",
    "raytrain train yaml/ppo/CartPole.yaml --results-dir s3://bucket/results": "needs an object store; tests/raytrain/test_remote_results.py has one in memory",
    "mkdir -p '~/.local": "of a shell; tests/raytrain/test_completion.py asks a real one",
    "source ": "of a shell, as above",
    "wandb login": "asks for a key",
    "raytrain tune": "starts Ray; tests/cluster/test_tuning.py runs sweeps",
    "raytrain list results/cartpole": "of a sweep, as above",
    "raytrain compare results/cartpole/trial": "of a sweep, as above",
    "raytrain evaluate results/cartpole/trial": "of a sweep, as above",
    "raytrain train results/cartpole/best.yaml": "of a sweep, as above",
    "raytrain train docs/examples/": "tests/raytrain/test_extending.py trains with each",
    "raytrain train yaml/ppo/CartPole.yaml --run-id walk --set 'writers=": "needs an extra; tests/raytrain/test_trackers.py writes to both",
    "raytrain list /data/results": "a folder of the reader's",
    "raytrain list s3://": "needs an object store; tests/raytrain/test_commands.py lists one in memory",
    "raytrain list results/tune-cartpole": "of a sweep, as above",
    "raytrain train --env": "tests/raytrain/test_default_run.py trains so",
    "raytrain check-env mine:Maze": "an environment of the reader's",
    "raytrain train yaml/ppo/SimpleSpread.yaml": "needs an extra; tests/envs/test_pettingzoo_worlds.py plays that world",
    "raytrain train yaml/ppo/CartPole-GAIL.yaml": "trains a discriminator; tests/raytrain/test_reward_signals.py does",
    "raytrain train yaml/sac/Pendulum.yaml": "tests/raytrain/test_run_sac.py trains with SAC",
}
"""Beginning of a command → why tests do not run it."""


def reason(command: str) -> str | None:
    """Why a command is not run, None for one that is."""
    return next((why for beginning, why in NOT_RUN.items() if command.startswith(beginning)), None)
