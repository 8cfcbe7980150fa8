"""Scripts for shells, made by shtab from the command line's own parser: new commands and options are in them without anybody's doing."""

from __future__ import annotations

import argparse

import shtab

from raytrain.cli import make_parser

_FOLDERS = ("DIR", "RESULTS_DIR")
_RUNS = ("RUN", "RUN_OR_POLICY")
_YAML = {"FILE", "ENV_OR_FILE"}
_PREAMBLE = {
    # What is typed may be the folder of the runs, a folder within it, or the beginning of a run's name: "cart" is results/cartpole.
    "bash": r"""
_raytrain_run_dirs() {
  compgen -d -- "$1"
  [[ $1 == */* ]] || compgen -d -- "results/$1"
}
_raytrain_run_ids() {
  (cd results 2>/dev/null && compgen -d -- "$1")
}
_raytrain_sweeps() {
  local found
  compgen -d -- "$1"
  for found in "results/$1"*/sweep.json; do
    [[ -f $found ]] && basename "$(dirname "$found")"
  done
}
_raytrain_yaml_files() {
  compgen -d -- "$1"
  compgen -f -X '!*.yaml' -- "$1"
  compgen -f -X '!*.yml' -- "$1"
}
""",
    "zsh": r"""
_raytrain_run_dirs() { _files -/ -W results -P results/; _files -/ }
_raytrain_run_ids() { _files -/ -W results }
_raytrain_sweeps() { local -a found=(results/*/sweep.json(N:h:t)); (( $#found )) && compadd -a found; _files -/ }
_raytrain_yaml_files() { _files -g '*.(yaml|yml)' }
""",
    "fish": r"""
function _raytrain_run_dirs
  set -l typed (commandline -ct)
  __fish_complete_directories $typed
  string match -q '*/*' -- $typed; or __fish_complete_directories results/$typed
end
function _raytrain_run_ids
  path basename results/*/
end
function _raytrain_sweeps
  for found in results/*/sweep.json
    path basename (path dirname $found)
  end
  __fish_complete_directories (commandline -ct)
end
function _raytrain_yaml_files
  __fish_complete_suffix .yaml
  __fish_complete_suffix .yml
end
""",
}


def script(shell: str) -> str:
    """The script for `shell`: ``bash``, ``zsh`` or ``fish``."""
    parser = make_parser()
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.choices.values():
        for action in command._actions:
            if (values := _values(action)) is not None:
                action.complete = values
    return shtab.complete(parser, shell, preamble=_PREAMBLE[shell])


def _values(action: argparse.Action) -> dict[str, str] | None:
    """What completes the values of an argument; None where anything goes."""
    if action.metavar in _RUNS:
        return _function("_raytrain_run_dirs")
    if action.metavar == "SWEEP":
        return _function("_raytrain_sweeps")
    if action.metavar == "ID":
        return _function("_raytrain_run_ids")
    if action.metavar in _FOLDERS:
        return shtab.DIRECTORY
    if action.metavar in _YAML and not action.option_strings:
        return _function("_raytrain_yaml_files")
    return shtab.FILE if (action.metavar or "").startswith("FILE") else None


def _function(name: str) -> dict[str, str]:
    return {"bash": name, "zsh": name, "fish": f"({name})"}
