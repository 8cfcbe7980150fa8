"""Packaging. Ranges that resolve together; Keras and NumPy of today ask for Python 3.11."""

from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
REQUIREMENTS = [line for line in (HERE / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
ENVS = {
    "box2d": ["gymnasium[box2d]>=1.1"],
    "mujoco": ["gymnasium[mujoco]>=1.1"],
    "atari": ["ale-py>=0.12", "opencv-python-headless>=4.8"],
    "envpool": ["envpool>=1.2"],
    "minigrid": ["minigrid>=3.0"],
    "pettingzoo": ["pettingzoo>=1.24", "mpe2"],
}
ONNX = ["onnxruntime>=1.14", "onnx>=1.14"]  # faster acting on images
REMOTE = ["fsspec>=2024.2"]  # results_dir as a URI; each kind of place has a package besides: s3fs, gcsfs, adlfs
PLOTS = ["matplotlib>=3.8", "plotext>=5.2,<6"]  # pictures, and curves in the terminal; plotext 6 has another interface
MLFLOW = ["mlflow-skinny>=3", "sqlalchemy>=2", "alembic>=1.13"]  # the last two for its database in a file; with databricks-sdk and others 100 MB
WANDB = ["wandb>=0.31"]  # 62 MB
VIDEO = ["moviepy>=1.0", "pygame-ce>=2.1"]  # raytrain play
TUNE = ["ray[tune]>=2.49,<3"]  # raytrain tune: pyarrow and pandas come with it
MINARI = ["minari[hdf5]>=0.5.3", "pillow>=10"]  # Minari reads images with Pillow without asking for it
RESULTS = ["scipy>=1.15", *PLOTS]  # scripts/results.py
NOTEBOOKS = ["ipykernel>=6.29", "nbclient>=0.10", "ipywidgets>=8", "pandas>=2.2"]  # docs/notebooks, run by scripts/notebooks.py
SITE = ["mkdocs>=1.6,<2", "mkdocs-material>=9.5,<10", "mkdocs-jupyter>=0.26.3"]  # mkdocs.yml

setup(
    name="raytrain",
    version="0.1.0",
    description="Distributed reinforcement learning with Ray, from one YAML file",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=["raytrain", "raytrain.actors", "raytrain.cluster", "trainers", "envs"],
    install_requires=REQUIREMENTS,
    extras_require={**ENVS, "minari": MINARI, "onnx": ONNX, "remote": REMOTE, "plots": PLOTS, "video": VIDEO, "tune": TUNE, "results": RESULTS, "mlflow": MLFLOW, "wandb": WANDB, "test": ["pytest>=8", "pytest-xdist>=3.6", "gymnasium[box2d]>=1.1", *ENVS["atari"], *ENVS["minigrid"], *ENVS["pettingzoo"], *MINARI, *ONNX, *REMOTE, *PLOTS, *VIDEO, *TUNE, *RESULTS, *NOTEBOOKS, *SITE], "docs": [*PLOTS, *ONNX, *NOTEBOOKS, *SITE]},
    entry_points={"console_scripts": ["raytrain = raytrain.cli:main"]},
)
