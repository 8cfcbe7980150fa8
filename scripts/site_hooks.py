"""What MkDocs (mkdocs.yml) does besides: pages made of files outside of docs/, and links to those files led to them.

README.md is the first page, CHANGELOG.md one of its own, and each folder of yaml/ a page that shows its files. In the repository links
lead to the files themselves; tests/raytrain/test_site.py checks both.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"ppo": "PPO", "sac": "SAC", "bc": "Behavioural cloning", "tune": "Sweeps", "cluster": "Clusters", "benchmarks": "Benchmarks"}
"""Folder of yaml/ → title of its page."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    made = {"index.md": (ROOT / "README.md").read_text(encoding="utf-8"), "generated/changes.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")}
    made |= {f"generated/{folder}.md": folder_page(folder, title) for folder, title in FOLDERS.items()}
    made["generated/schema.json"] = (ROOT / "yaml" / "schema.json").read_text(encoding="utf-8")
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that leave docs/ led to the pages that are made."""
    return links(markdown, page.file.src_uri)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Notebooks without the script that would fetch a drawing library from elsewhere; they have no such drawings."""
    return re.sub(r"<script type=\"module\">(?:(?!</script>).)*mermaid(?:(?!</script>).)*</script>", "", output, flags=re.DOTALL)


def folder_page(folder: str, title: str) -> str:
    """All files of a folder of yaml/, each below a heading."""
    parts = [f"# {title}: ready-made files", f"The files of `yaml/{folder}`. Each runs as it stands, and says why its numbers are what they are."]
    for path in sorted((ROOT / "yaml" / folder).glob("*.yaml")):
        parts.append(f"## {path.stem}\n\n`yaml/{folder}/{path.name}`\n\n```yaml\n{path.read_text(encoding='utf-8').rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def links(markdown: str, page: str) -> str:
    """`markdown` of the page at `page` (relative to docs/), with its links to files of the repository led to pages of the site."""
    if page.startswith("generated/"):
        return re.sub(r"\]\(docs/", "](../", markdown)
    up = "" if page == "index.md" else r"\.\./"
    markdown = re.sub(rf"\]\({up}yaml/(\w+)/([\w-]+)\.yaml\)", lambda m: f"](generated/{m[1]}.md#{m[2].lower()})", markdown)
    markdown = re.sub(rf"\]\({up}yaml/(\w+)/?\)", r"](generated/\1.md)", markdown)
    markdown = re.sub(rf"\]\({up}yaml/schema\.json\)", "](generated/schema.json)", markdown)
    markdown = re.sub(rf"\]\({up}CHANGELOG\.md\)", "](generated/changes.md)", markdown)
    return re.sub(r"\]\(docs/", "](", markdown) if page == "index.md" else markdown
