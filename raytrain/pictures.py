"""Pictures as PNG files, by matplotlib, which is an extra."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUFFIX = ".png"


def check_picture(path: Path, option: str) -> Path:
    """The file a picture is to be written to; what would be refused is refused before anything is played.

    Raises:
        ValueError: it is no PNG, its folder does not exist, or matplotlib is missing.
    """
    path = path.expanduser()
    if path.suffix.lower() != _SUFFIX:
        raise ValueError(f"Expected {option} FILE with a name ending in {_SUFFIX}, received {path}.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"Expected {option} FILE in a folder that exists, received {path}; make {path.absolute().parent} first.")
    figure_of(1.0, 1.0)
    return path


def figure_of(width: float, height: float) -> Figure:
    """An empty figure (inches) that needs no screen.

    Raises:
        ValueError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"Expected matplotlib for pictures, which is not installed ({error}); pip install 'raytrain[plots]'.") from None
    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write the PNG.

    Raises:
        ValueError: the disk refuses.
    """
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise ValueError(f"Cannot write the picture {path}: {error}.") from error
