"""The site that MkDocs makes of docs/: every page can be reached, and nothing is fetched from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="needs the extra docs")
sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "scripts")]

import site_hooks
import yaml

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
SETTINGS = yaml.load(re.sub(r"!!python/\S+", "", (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")), yaml.SafeLoader)


def pages(navigation: object) -> list[str]:
    """All files that a navigation names."""
    if isinstance(navigation, str):
        return [navigation]
    parts = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for part in parts for page in pages(part)]


def test_every_page_is_in_the_navigation():
    named = pages(SETTINGS["nav"])
    written = [str(path.relative_to(DOCS)) for pattern in ("*.md", "notebooks/*.ipynb") for path in DOCS.glob(pattern)]
    made = ["index.md", "generated/changes.md", *(f"generated/{folder}.md" for folder in site_hooks.FOLDERS)]
    assert sorted(named) == sorted([*written, *made])


def test_every_folder_of_ready_made_files_has_a_page():
    assert set(site_hooks.FOLDERS) == {path.name for path in (REPOSITORY / "yaml").iterdir() if path.is_dir()}


def test_every_page_can_be_reached_from_the_readme_on_github():
    """By links alone; notebooks, too."""
    reached, waiting = set(), [REPOSITORY / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or not page.is_file():
            continue
        reached.add(page)
        if page.suffix == ".md":
            waiting += [(page.parent / link).resolve() for link in re.findall(r"\]\(([\w./-]+\.(?:md|ipynb))(?:#[\w-]*)?\)", page.read_text(encoding="utf-8"))]
    assert [path.name for path in [*DOCS.glob("*.md"), *DOCS.glob("notebooks/*.ipynb")] if path not in reached] == []


@pytest.mark.parametrize(("page", "link", "led"), [
    ("ppo.md", "[f](../yaml/ppo/CartPole.yaml)", "[f](generated/ppo.md#cartpole)"),
    ("ppo.md", "[f](../yaml/sac)", "[f](generated/sac.md)"),
    ("index.md", "[f](docs/ppo.md#metrics)", "[f](ppo.md#metrics)"),
    ("index.md", "[f](CHANGELOG.md)", "[f](generated/changes.md)"),
    ("generated/changes.md", "[f](docs/migration.md)", "[f](../migration.md)"),
    ("ppo.md", "[f](sac.md)", "[f](sac.md)"),
])
def test_links_out_of_docs_are_led_to_pages(page: str, link: str, led: str):
    assert site_hooks.links(link, page) == led


@pytest.mark.slow
def test_the_site_is_made_without_a_warning_and_fetches_nothing(tmp_path: Path):
    """Strict: a link or an anchor that leads nowhere, or a page left out, is an error."""
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)], cwd=REPOSITORY, capture_output=True,
                          text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for path in tmp_path.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe)[^>]+src=[\"']?(?:https?:)?//[^\"' >]+|<link[^>]+href=[\"']?(?:https?:)?//[^\"' >]+", text)
        assert fetched + re.findall(r"https?://(?:cdn|unpkg|fonts)[^\"' )]*", text) == [], path.name
    assert "gae" in (tmp_path / "search" / "search_index.json").read_text(encoding="utf-8").lower()
