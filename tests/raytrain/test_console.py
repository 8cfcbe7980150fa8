import io
import itertools
import re
import time

import pytest

from raytrain.console import Console, SilenceGuard
from raytrain.stats import (
    CUMULATIVE_REWARD,
    EPISODE_LENGTH,
    POLICY_LAG_MEAN,
    QUEUE_FILL,
    STEPS_PER_SECOND,
    UPDATES_PER_SECOND,
    Summary,
)
from raytrain.summary_line import SummaryLines, format_number, format_seconds

ESCAPE = "\x1b"


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True

    def screen(self):
        """What was printed, without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def plain(clock):
    return Console(file=io.StringIO(), error_file=io.StringIO(), clock=clock, environ={})


@pytest.fixture
def terminal(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Console(file=Terminal(), error_file=Terminal(), clock=clock, environ={"TERM": "xterm-256color"})


def test_what_takes_long_and_cannot_be_asked_is_said_once_and_what_is_quick_is_not(plain):
    with plain.busy("opening the box", after_s=600.0):
        pass
    assert output(plain) == ""
    with plain.busy("opening the box", after_s=0.0):
        for _ in range(1_000):
            if output(plain):
                break
            time.sleep(0.01)
    assert output(plain) == "opening the box …\n"


def output(console):
    return console._out.file.getvalue()


def summary(step=20_000, mean=145.25, behavior="CartPole", episodes=23, longest=0, std=30.12):
    values = {STEPS_PER_SECOND: 95_000.0, POLICY_LAG_MEAN: 1.0, UPDATES_PER_SECOND: 210.0, QUEUE_FILL: 2.0}
    if mean is not None:
        values |= {CUMULATIVE_REWARD: mean, EPISODE_LENGTH: 145.0}
    return Summary(behavior, step, values, episodes, longest, 12.3, std)


def test_a_summary_is_one_line_with_what_matters(plain):
    """D7: return, length, rate, updates, queue fill and lag."""
    plain.summary(summary())
    words = " ".join(output(plain).split())
    assert words == (
        "CartPole step 20,000 12.3 s return 145.2 ± 30.12 (23 episodes) length 145 95,000 steps/s lag 1.0 210 updates/s queue 2.0/20"
    )
    assert output(plain).count("\n") == 1


def test_no_episode_yet_is_said_with_the_longest_running_one(plain):
    """C42."""
    plain.summary(summary(mean=None, longest=5000, episodes=0, std=None))
    assert "no episode finished yet; longest running: 5,000 steps" in output(plain)
    assert "nan" not in output(plain).lower() and "return" not in output(plain)


def test_no_episode_after_some_is_not_called_yet(plain, clock):
    plain.summary(summary())
    clock.now += 10
    plain.summary(summary(step=40_000, mean=None, longest=5000))
    assert "no new episode finished; longest running: 5,000 steps" in output(plain)


@pytest.mark.parametrize("plus_minus", ["±", "+/-"])
def test_columns_stay_in_place_from_line_to_line(plus_minus):
    lines = SummaryLines(plus_minus)
    lines.know("CartPole", max_steps=500_000)
    cases = [
        summary(), summary(step=500_000, mean=-1234.5, std=1234.5, episodes=1234), summary(step=40, mean=0.5, std=0.001, episodes=1),
        summary(mean=None, longest=5000), summary(behavior="Walker"),
    ]
    texts = [lines.line(case, width=200).plain for case in cases]
    for word in ("step ", " steps/s", "lag ", " updates/s", "queue "):
        assert len({text.index(word) for text in texts}) == 1, word
    for word in ("return ", f"{plus_minus} ", "(", "length "):
        assert len({text.index(word) for text in texts if "return" in text}) == 1, word


@pytest.mark.parametrize(("width", "shown", "hidden"), [(80, "return", "(23"), (120, "lag", "queue"), (60, "20,000", "lag")])
def test_a_narrow_terminal_loses_the_least_important_columns(width, shown, hidden):
    line = SummaryLines().line(summary(), width).plain
    assert len(line) <= width and shown in line and hidden not in line


def test_summaries_that_come_fast_are_thinned_to_the_newest(plain, clock):
    for tenth in range(1, 51):  # ten a second for five seconds
        clock.now = tenth / 10
        plain.summary(summary(step=tenth * 1000))
    plain.close()
    steps = [int(step.replace(",", "")) for step in re.findall(r"step +([\d,]+)", output(plain))]
    assert 9 <= len(steps) <= 12
    assert steps[0] == 1000 and steps[-1] == 50_000 and steps == sorted(steps)


def test_a_summary_held_back_appears_when_its_time_has_come(plain, clock):
    for step in (1000, 2000, 3000):
        plain.summary(summary(step=step))
    assert output(plain).count("\n") == 1
    clock.now = 0.6
    plain.progress(3100, 10_000)
    assert re.findall(r"step +([\d,]+)", output(plain)) == ["1,000", "3,000"]


def test_each_behavior_keeps_its_line(plain, clock):
    plain.summary(summary(behavior="Goalie"))
    plain.summary(summary(behavior="Striker"))
    plain.close()
    assert re.findall(r"^\w+", output(plain), re.MULTILINE) == ["Goalie", "Striker"]


def show_everything(console):
    console.header("raytrain 0.1.0", [("ray", "private local cluster"), ("run", "results/[red]x[/red]")])
    console.config_table([("hyperparameters", [("batch_size", 512), ("buffer_size", 4096)]), ("empty", []), ("stop", [("reward", None)])])
    console.startup_table("CartPole", [("space", "Box (4,) float32"), ("distribution", "categorical")])
    console.message("a message")
    console.warning("a warning")
    console.progress(10_000, 500_000, 12.0, "CartPole")
    console.summary(summary())
    console.ended("max_steps reached", "raytrain train x.yaml --resume", [("results", "results/x")])
    console.close()


@pytest.mark.parametrize(
    ("file", "environ"),
    [(io.StringIO, {}), (Terminal, {"NO_COLOR": "1"}), (Terminal, {"TERM": "dumb"})], ids=["no terminal", "NO_COLOR", "dumb"],
)
def test_plain_output_has_no_escape_codes_and_no_bar(file, environ, clock):
    console = Console(file=file(), clock=clock, environ=environ)
    show_everything(console)
    text = output(console)
    assert console.is_plain and ESCAPE not in text and "━" not in text
    assert "\r" not in text and not re.search(r" $", text, re.MULTILINE)
    assert "warning: a warning\n" in text and "  batch_size   512\n  buffer_size  4096\n" in text
    assert "empty" not in text


def test_a_terminal_gets_colour_and_a_bar(terminal):
    show_everything(terminal)
    assert ESCAPE in output(terminal)
    assert re.search("━.*10,000/500,000 steps", terminal._out.file.screen())
    assert output(terminal).endswith("--resume\n")


def test_the_startup_table_has_a_line_per_item(plain):
    """C65."""
    rows = [(item, f"its {item}") for item in ("space", "distribution", "mapping", "normalisation", "mask", "frame-stack", "dtype")]
    plain.startup_table("CartPole", rows)
    lines = output(plain).splitlines()
    assert lines[0] == "behavior CartPole"
    assert [line.split()[0] for line in lines[1:] if line] == [item for item, _ in rows]


def test_what_users_name_is_never_read_as_markup(plain, terminal):
    for console in (plain, terminal):
        console.header("run", [("folder", "results/[bold]x[/bold]")])
        console.message("action[0] of [red]agent[/red]")
    assert "results/[bold]x[/bold]" in output(plain) and "action[0] of [red]agent[/red]" in output(plain)
    assert "results/[bold]x[/bold]" in terminal._out.file.screen()


def test_a_stream_without_unicode_does_not_end_the_run(clock):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    console = Console(file=file, clock=clock, environ={})
    console.message("Discrete(2) → 2")
    console.summary(summary())
    assert b"Discrete(2) ? 2" in raw.getvalue() and b"145.2 +/- 30.12" in raw.getvalue()


def test_the_resume_command_can_be_copied_in_one_piece(terminal):
    """D10: no line break of ours in the command, however long it is."""
    command = "raytrain train yaml/ppo/CartPole.yaml --results-dir /a/long/way/down/to/the/results --run-id CartPole-2026 --resume"
    terminal.ended("interrupted", command)
    assert command in terminal._out.file.screen()


def test_a_bar_of_a_resumed_run_starts_at_its_checkpoint(terminal, clock):
    """The steps before the resume do not count towards the rate."""
    for second in range(4):
        clock.now = float(second)
        terminal.progress(400_000 + 1000 * second, 500_000)
    last = terminal._out.file.screen().splitlines()[-1]
    assert re.search(r"403,000/500,000 steps +1,000/s +1m 37s left", last)


def test_the_cursor_is_never_left_hidden(terminal):
    terminal.progress(10, 100)
    assert output(terminal).rindex(f"{ESCAPE}[?25h") > output(terminal).rindex(f"{ESCAPE}[?25l")


def test_every_behavior_has_its_bar(terminal, clock):
    for second in range(3):
        clock.now = float(second)
        terminal.progress(1000 * second, 500_000, behavior="Goalie")
        terminal.progress(2000 * second, 500_000, behavior="Striker")
    terminal.progress(2000, 500_000, behavior="Goalie")
    drawn = terminal._out.file.screen()
    assert re.search(r"Goalie .*2,000/500,000", drawn) and re.search(r"Striker .*2,000/500,000", drawn)


def test_an_error_ends_with_the_users_own_traceback_and_what_to_do(plain):
    """D6: the last 15 lines hold the user's exception, file and line; the full chain is in a file that is named."""
    traceback = 'Traceback (most recent call last):\n  File "my_env.py", line 7, in step\n    raise ValueError("boom-42")\nValueError: boom-42\n'
    plain.error("Environment 3 failed at step 12.", traceback, "results/x/logs/driver.log")
    text = plain._error_file.getvalue()
    assert output(plain) == ""
    last = "\n".join(text.splitlines()[-15:])
    assert 'File "my_env.py", line 7' in last and "ValueError: boom-42" in last and "Full log: results/x/logs/driver.log" in last
    assert text.index("boom-42") < text.index("error: Environment 3 failed")


def test_an_error_that_holds_its_traceback_shows_it_once(plain):
    traceback = "Traceback (most recent call last):\nValueError: boom-42"
    plain.error(f"{traceback}\nEnvironment 3 failed.", traceback)
    assert plain._error_file.getvalue() == f"\n{traceback}\nEnvironment 3 failed.\n"


def test_an_error_comes_after_the_summary_held_back(plain):
    plain.summary(summary(step=1000))
    plain.summary(summary(step=2000))
    plain.error("broken")
    assert "step   2,000" in output(plain)


def test_an_error_takes_the_bar_away_first(terminal):
    terminal.progress(10, 100)
    terminal.error("broken")
    printed = output(terminal)
    assert printed.rindex(f"{ESCAPE}[2K") > printed.rindex("━")  # its line is erased


def test_waits_are_told_before_15_s_of_silence(plain, clock):
    """D5: at most 15 s without a line in the first two minutes, with what is waited for and how long; calmer later."""
    printed_at, length = [0.0], 0
    for second in range(601):
        clock.now = float(second)
        plain.waiting("Ray to start" if second < 40 else "the first trajectories")
        if len(output(plain)) > length:
            printed_at.append(clock.now)
            length = len(output(plain))
    gaps = [later - earlier for earlier, later in itertools.pairwise(printed_at)]
    assert max(gap for gap, start in zip(gaps, printed_at) if start < 110) <= 15
    assert all(gap >= 60 for gap, start in zip(gaps, printed_at) if start >= 120)
    lines = output(plain).splitlines()
    assert lines[0] == "waiting for Ray to start, 10 s"
    assert "waiting for the first trajectories, 20 s" in lines


def test_other_lines_count_as_news(plain, clock):
    clock.now = 9.0
    plain.message("hello")
    clock.now = 15.0
    plain.waiting("Ray", since_s=15.0)
    assert "waiting" not in output(plain)
    clock.now = 19.0
    plain.waiting("Ray", since_s=19.0)
    assert "waiting for Ray, 19 s" in output(plain)


def test_a_bar_that_stands_still_is_silence(terminal, clock):
    for second in range(30):
        clock.now = float(second)
        terminal.progress(1000 * min(second, 12), 500_000)
        assert terminal.silence.due() == (second >= 22)


def test_the_guard_keeps_asking_until_something_is_printed(clock):
    guard = SilenceGuard(clock)
    clock.now = 9.9
    assert not guard.due()
    clock.now = 10.0
    assert guard.due() and guard.due()
    guard.spoke()
    assert not guard.due()


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.000"), (0.1234, "0.123"), (-9.534, "-9.53"), (145.24, "145.2"), (-1234.56, "-1,234.6"), (12345.6, "12,346")],
)
def test_numbers_show_the_figures_that_matter(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0.0 s"), (12.34, "12.3 s"), (59.97, "1m 00s"), (243, "4m 03s"), (3725, "1h 02m")])
def test_times_are_short(seconds, text):
    assert format_seconds(seconds) == text
