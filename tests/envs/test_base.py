"""EnvFault: what it says and that it travels."""

from __future__ import annotations

import pickle
import subprocess
import sys

from envs.base import EnvFault


def fault() -> EnvFault:
    return EnvFault("ValueError: boom-42", env_index=3, episode=2, step=30, last_action=[0.5], user_traceback="Traceback …\n  line\n")


def test_text_begins_with_the_users_words_and_names_the_place() -> None:
    """C19, C54: exception first, then env, episode, step and action, then the traceback."""
    assert str(fault()) == "ValueError: boom-42\nenv 3, episode 2, step 30, last action [0.5]\nTraceback …\n  line"
    assert str(EnvFault("died")) == "died"
    assert str(EnvFault("died", env_index=0, episode=0, step=0)) == "died\nenv 0, episode 0, step 0"


def test_survives_pickle() -> None:
    copy = pickle.loads(pickle.dumps(fault()))
    assert type(copy) is EnvFault
    assert str(copy) == str(fault())
    assert vars(copy) == vars(fault())
    assert copy.args == fault().args


def test_located_keeps_message_and_traceback() -> None:
    located = EnvFault("boom", user_traceback="tb").located(7, 1, 2, 0)
    assert (located.env_index, located.episode, located.step, located.last_action) == (7, 1, 2, 0)
    assert (located.message, located.user_traceback) == ("boom", "tb")


def test_whether_a_restart_may_help_travels_with_the_fault() -> None:
    """C17: through a pipe and to its place; a last word stands behind the place and before the traceback."""
    assert not fault().restartable
    restartable = EnvFault("died", user_traceback="tb", restartable=True)
    there = pickle.loads(pickle.dumps(restartable)).located(3, 2, 1, None)
    assert there.restartable
    last = pickle.loads(pickle.dumps(there.final("Not started anew.")))
    assert str(last) == "died\nenv 3, episode 2, step 1\nNot started anew.\ntb"
    assert not last.restartable
    assert str(there.final()) == str(there)
    assert there.restartable


def test_envs_loads_neither_ray_nor_tensorflow_nor_the_layers_above() -> None:
    """The layers: envs needs NumPy and Gymnasium only."""
    code = ("import sys, envs.gymnasium_env, envs.toy; "
            "print([m for m in ('ray', 'tensorflow', 'keras', 'raytrain', 'trainers') if m in sys.modules])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
