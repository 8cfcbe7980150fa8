"""``raytrain schema``."""

from __future__ import annotations

import argparse

HELP = "print the JSON Schema of configuration files"
DESCRIPTION = "Print the JSON Schema that editors complete configuration files from."


def add_arguments(schema: argparse.ArgumentParser) -> None:
    """It takes nothing."""


def run(options: argparse.Namespace) -> int:
    """Print it; the exit code."""
    import json

    from raytrain.config_text import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0
