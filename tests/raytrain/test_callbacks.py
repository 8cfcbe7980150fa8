import pickle

import pytest

from raytrain.callbacks import CallbackError, Callbacks
from raytrain.stats import Summary

SUMMARY = Summary("Walker", 100, {}, 0, 5, 1.0)


def test_without_functions_nothing_happens():
    callbacks = Callbacks()
    callbacks.episodes("Walker", [1.0], [5], 100)
    callbacks.summary(SUMMARY)
    callbacks.checkpoint("checkpoints/000001", 100, None)


def test_each_event_reaches_its_function():
    calls = []
    callbacks = Callbacks(*[lambda *arguments: calls.append(arguments)] * 3)
    callbacks.episodes("Walker", [1.0, 2.5], [5, 6], 100)
    callbacks.summary(SUMMARY)
    callbacks.checkpoint("checkpoints/000001", 100, None)
    assert calls == [("Walker", 1.0, 5, 100), ("Walker", 2.5, 6, 100), (SUMMARY,), ("checkpoints/000001", 100, None)]


def broken_callback(summary):
    raise KeyError("my-own-mistake")


def test_a_raising_callback_is_shown_as_the_users_traceback():
    """D6: the user's exception, file and line come first, without a frame of ours."""
    with pytest.raises(CallbackError) as caught:
        Callbacks(on_summary=broken_callback).summary(SUMMARY)
    lines = str(caught.value).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].strip().startswith(f'File "{__file__}", line ') and lines[1].endswith("in broken_callback")
    assert "KeyError: 'my-own-mistake'" in caught.value.user_traceback
    assert "callbacks.py" not in caught.value.user_traceback.replace(__file__, "")
    assert "on_summary" in lines[-1]
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_callback_with_other_arguments_is_named():
    with pytest.raises(CallbackError, match="on_checkpoint"):
        Callbacks(on_checkpoint=lambda: None).checkpoint("checkpoints/000001", 100, 1.0)


def test_an_interrupt_inside_a_callback_stays_one():
    def interrupted(summary):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Callbacks(on_summary=interrupted).summary(SUMMARY)


def test_the_error_crosses_processes():
    again = pickle.loads(pickle.dumps(CallbackError("message", "traceback")))
    assert (str(again), again.user_traceback) == ("traceback\nmessage", "traceback")
