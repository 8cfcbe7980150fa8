"""``raytrain export RUN``."""

from __future__ import annotations

import argparse
import json

HELP = "write a trained policy as ONNX, and as Python that needs NumPy alone"
DESCRIPTION = "Write the policies of a run as files that other programs run, each compared with the policy on 1,000 random observations."


def add_arguments(export: argparse.ArgumentParser) -> None:
    """What the command takes."""
    export.add_argument("run_path", metavar="RUN", help="run folder, such as results/CartPole-20260101-120000, or one of its checkpoints; also a URI")
    export.add_argument("--format", choices=("onnx", "numpy", "all"), default="all", help="onnx (Unity's names and axes), numpy (one Python file), or all (default)")
    export.add_argument("--out", metavar="DIR", help="where the files go (default: RUN/export)")
    export.add_argument("--checkpoint", default="best", metavar="best|latest|NUMBER", help="which checkpoint of the run (default: best)")
    export.add_argument("--behavior", metavar="NAME", help="only this behavior (default: all of the run, a file each)")
    export.add_argument("--env-space", action="store_true", help="ONNX: images as the environment stores them, and actions in its units besides")
    export.add_argument("--tolerance", type=float, default=1e-5, metavar="X", help="largest difference from the policy (default: 1e-5)")
    export.add_argument("--json", action="store_true", help="print what was written as JSON")


def run(options: argparse.Namespace) -> int:
    """Export; the exit code."""
    from raytrain.console import Console
    from raytrain.export import FORMATS, ExportedFile, ExportFault, export_run

    console = Console()
    formats = FORMATS if options.format == "all" else (options.format,)
    try:
        if not 0.0 <= options.tolerance < float("inf"):
            raise ValueError(f"Expected --tolerance of at least 0, received {options.tolerance}.")
        files = export_run(options.run_path, options.out, formats, options.checkpoint, options.behavior, options.env_space, options.tolerance)
    except ValueError as error:  # CheckpointError is one
        console.error(str(error))
        return 2
    except (ExportFault, OSError) as error:
        console.error(str(error))
        return 1

    def plain(file: ExportedFile) -> dict[str, object]:
        return {"behavior": file.behavior, "format": file.format, "path": str(file.path), "bytes": file.size, "largest_difference": file.difference}

    if options.json:
        print(json.dumps([plain(file) for file in files], indent=1))
        return 0
    for file in files:
        checked = "not compared: onnxruntime is not installed" if file.difference is None else (
            f"largest difference from the policy {file.difference:.1e} in 1,000 random observations")
        console.table(f"{file.behavior}: {file.path} ({file.size / 1e3:,.1f} kB)", [*file.rows, ("check", checked)])
    return 0
