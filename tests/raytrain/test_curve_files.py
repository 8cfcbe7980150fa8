import csv
import resource
import struct

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from raytrain.csv_writer import CsvFile
from raytrain.stats import CUMULATIVE_REWARD, Summary
from raytrain.tensorboard_writer import TensorBoardFiles

ENTROPY = "Policy/Entropy"


def summary(step, values=None, episodes=1, reward_std=0.5):
    return Summary("Walker", step, {CUMULATIVE_REWARD: step / 100} if values is None else values, episodes, 7, step / 10, reward_std)


def read_events(path):
    """Every event of a file; checks the framing as TensorBoard does."""
    data, position, events = path.read_bytes(), 0, []
    while position < len(data):
        length, length_crc = struct.unpack_from("<QI", data, position)
        record = data[position + 12 : position + 12 + length]
        (record_crc,) = struct.unpack_from("<I", data, position + 12 + length)
        assert (length_crc, record_crc) == (masked_crc32c(data[position : position + 8]), masked_crc32c(record))
        events.append(Event.FromString(record))
        position += 16 + length
    return events


def read_curves(folder, purge=True):
    """Tag -> [(step, value)], with files in the order of their names, and the purge marks obeyed or (as some readers do) not."""
    curves = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in read_events(path):
            if purge and event.HasField("session_log") and event.session_log.status == SessionLog.START:
                curves = {tag: [point for point in points if point[0] < event.step] for tag, points in curves.items()}
            for value in event.summary.value:
                curves.setdefault(value.tag, []).append((event.step, value.simple_value or b"".join(value.tensor.string_val)))
    return curves


def test_tensorboard_gets_every_tag_under_its_own_name(tmp_path):
    writer = TensorBoardFiles(tmp_path / "Walker")
    writer.write(summary(100, {CUMULATIVE_REWARD: 1.5, ENTROPY: 0.25}))
    writer.write(summary(200, {ENTROPY: 0.125}))
    writer.close()
    assert read_curves(tmp_path / "Walker") == {CUMULATIVE_REWARD: [(100, 1.5)], ENTROPY: [(100, 0.25), (200, 0.125)]}


def test_tensorboard_gets_hyperparameters_as_text(tmp_path):
    writer = TensorBoardFiles(tmp_path)
    writer.hyperparameters({"hyperparameters.epsilon": 0.2})
    writer.close()
    [(step, text)] = read_curves(tmp_path)["Hyperparameters/text_summary"]
    assert step == 0 and "| hyperparameters.epsilon | 0.2 |" in text.decode()


@pytest.mark.parametrize("purge", [True, False])
def test_a_resumed_run_continues_each_curve(tmp_path, purge):
    """C31: train to 1,500 with a checkpoint at 1,000, kill, resume to 2,000: strictly increasing steps, nothing of the lost tail.

    Both for readers that obey purge marks and for those that do not.
    """
    first = TensorBoardFiles(tmp_path)
    first.hyperparameters({"seed": 1})
    for step in (500, 1000, 1400, 1500):
        first.write(summary(step, {CUMULATIVE_REWARD: 1.0, ENTROPY: 1.0}))
    first.close()
    for _ in range(2):  # killed again before the first summary after the resume
        resumed = TensorBoardFiles(tmp_path, resume_step=1000)
        resumed.hyperparameters({"seed": 1})
        resumed.close()
    resumed = TensorBoardFiles(tmp_path, resume_step=1000)
    for step in (1500, 2000):
        resumed.write(summary(step, {CUMULATIVE_REWARD: 2.0}))
    resumed.close()
    curves = read_curves(tmp_path, purge)
    assert curves[CUMULATIVE_REWARD] == [(500, 1.0), (1000, 1.0), (1500, 2.0), (2000, 2.0)]
    assert curves[ENTROPY] == [(500, 1.0), (1000, 1.0)]
    assert [step for step, _ in curves["Hyperparameters/text_summary"]] == [0]


def test_a_resumed_run_marks_what_a_running_tensorboard_must_forget(tmp_path):
    """C31: the new file begins with a purge mark at the step after the checkpoint."""
    TensorBoardFiles(tmp_path).close()
    TensorBoardFiles(tmp_path, resume_step=1000).close()
    newest = max(tmp_path.glob("events.*"))
    assert [e.step for e in read_events(newest) if e.session_log.status == SessionLog.START] == [1001]


def test_a_file_cut_off_by_a_kill_is_mended_on_resume(tmp_path):
    first = TensorBoardFiles(tmp_path)
    first.write(summary(100))
    first.write(summary(200))
    first.close()
    [path] = tmp_path.glob("events.*")
    path.write_bytes(path.read_bytes()[:-5])
    TensorBoardFiles(tmp_path, resume_step=500).close()
    assert read_curves(tmp_path) == {CUMULATIVE_REWARD: [(100, 1.0)]}


def test_events_are_flushed_at_most_once_a_second_and_at_the_end(tmp_path):
    now = [0.0]
    writer = TensorBoardFiles(tmp_path, clock=lambda: now[0])
    seen = []
    for tenths, step in [(0, 100), (4, 200), (9, 300), (10, 400), (11, 500)]:
        now[0] = tenths / 10
        writer.write(summary(step))
        seen.append(len(read_curves(tmp_path).get(CUMULATIVE_REWARD, [])))
    writer.close()
    assert seen == [1, 1, 1, 4, 4]
    assert len(read_curves(tmp_path)[CUMULATIVE_REWARD]) == 5


def test_a_disk_that_refuses_is_an_error_not_a_silent_loss(tmp_path):
    writer = TensorBoardFiles(tmp_path)
    writer.write(summary(100))
    [path] = tmp_path.glob("events.*")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            writer.write(summary(200))
            writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_event_files_of_one_second_do_not_replace_each_other(tmp_path):
    TensorBoardFiles(tmp_path).close()
    for _ in range(3):
        TensorBoardFiles(tmp_path, resume_step=0).close()
    assert len(list(tmp_path.glob("events.*"))) == 4


@pytest.mark.parametrize("writer_class", [TensorBoardFiles, CsvFile])
class TestBothWriters:
    def test_steps_must_increase(self, tmp_path, writer_class):
        """C31."""
        writer = writer_class(tmp_path)
        writer.write(summary(200))
        for step in (200, 100):
            with pytest.raises(ValueError, match=f"after step 200 .* got step {step}"):
                writer.write(summary(step))
        writer.close()

    def test_a_resumed_run_writes_nothing_up_to_its_checkpoint(self, tmp_path, writer_class):
        """C21: no summary with a step at or below the checkpoint's."""
        writer = writer_class(tmp_path, resume_step=1000)
        with pytest.raises(ValueError, match="after step 1000"):
            writer.write(summary(1000))
        writer.close()

    def test_what_is_not_a_number_is_refused(self, tmp_path, writer_class):
        """C42."""
        writer = writer_class(tmp_path)
        with pytest.raises(ValueError, match=f"'{ENTROPY}' = nan"):
            writer.write(summary(100, {ENTROPY: float("nan")}))
        writer.close()

    def test_a_new_run_does_not_mix_with_an_old_one(self, tmp_path, writer_class):
        writer = writer_class(tmp_path)
        writer.write(summary(100))
        writer.close()
        with pytest.raises(FileExistsError, match="Resume that run"):
            writer_class(tmp_path)

    def test_closing_twice_is_allowed(self, tmp_path, writer_class):
        writer = writer_class(tmp_path)
        writer.close()
        writer.close()


def test_tensorboard_rewinds_to_a_checkpoint(tmp_path):
    writer = TensorBoardFiles(tmp_path)
    for step in (100, 200, 300):
        writer.write(summary(step))
    writer.rewind(150)
    writer.write(summary(200, {CUMULATIVE_REWARD: 7.0}))
    writer.close()
    assert read_curves(tmp_path) == {CUMULATIVE_REWARD: [(100, 1.0), (200, 7.0)]}


def read_table(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.reader(file))


def test_csv_has_a_row_per_summary_at_once(tmp_path):
    writer = CsvFile(tmp_path / "Walker")
    writer.write(summary(100))
    assert read_table(tmp_path / "Walker") == [
        ["step", "elapsed_s", "episodes", "reward_std", "longest_episode", CUMULATIVE_REWARD], ["100", "10.0", "1", "0.5", "7", "1.0"],
    ]
    writer.close()


def test_csv_takes_new_tags_later_and_leaves_cells_empty(tmp_path):
    """C42: no data is an empty cell."""
    writer = CsvFile(tmp_path)
    writer.write(summary(100, {}, episodes=0, reward_std=None))
    writer.write(summary(200, {CUMULATIVE_REWARD: 0.1}))
    writer.write(summary(300, {ENTROPY: 0.5}, episodes=0, reward_std=None))
    writer.close()
    header, *rows = read_table(tmp_path)
    assert header[0] == "step" and header[5:] == [CUMULATIVE_REWARD, ENTROPY]
    assert rows == [
        ["100", "10.0", "0", "", "7", "", ""], ["200", "20.0", "1", "0.5", "7", "0.1", ""], ["300", "30.0", "0", "", "7", "", "0.5"],
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.csv"]


def test_csv_keeps_numbers_exactly(tmp_path):
    writer = CsvFile(tmp_path)
    writer.write(summary(100, {ENTROPY: 1 / 3}))
    writer.close()
    assert float(read_table(tmp_path)[1][-1]) == 1 / 3


def test_csv_resumes_from_the_checkpoint(tmp_path):
    """C31: rows after the checkpoint go, the others stay, new tags join."""
    writer = CsvFile(tmp_path)
    for step in (500, 1000, 1500):
        writer.write(summary(step, {CUMULATIVE_REWARD: 1.0}))
    writer.close()
    resumed = CsvFile(tmp_path, resume_step=1000)
    resumed.write(summary(1500, {CUMULATIVE_REWARD: 2.0, ENTROPY: 3.0}))
    resumed.close()
    rows = read_table(tmp_path)[1:]
    assert [(row[0], row[-2], row[-1]) for row in rows] == [("500", "1.0", ""), ("1000", "1.0", ""), ("1500", "2.0", "3.0")]


def test_csv_rewinds_to_a_checkpoint(tmp_path):
    writer = CsvFile(tmp_path)
    for step in (100, 200):
        writer.write(summary(step))
    writer.rewind(150)
    writer.write(summary(200))
    writer.close()
    assert [row[0] for row in read_table(tmp_path)] == ["step", "100", "200"]


@pytest.mark.parametrize("kept", [0, 3, -2])
def test_csv_half_written_by_a_killed_run_is_mended(tmp_path, kept):
    writer = CsvFile(tmp_path)
    for step in (100, 200):
        writer.write(summary(step))
    writer.close()
    path = tmp_path / "metrics.csv"
    text = path.read_text()
    last = text.index("\n200,") + 1
    path.write_text(text[:last] + text[last:][:kept])
    resumed = CsvFile(tmp_path, resume_step=300)
    resumed.write(summary(400))
    resumed.close()
    assert [row[0] for row in read_table(tmp_path)] == ["step", "100", "400"]


def test_csv_resumes_where_nothing_was_written(tmp_path):
    (tmp_path / "metrics.csv").touch()
    writer = CsvFile(tmp_path, resume_step=0)
    writer.write(summary(100))
    writer.close()
    assert [row[0] for row in read_table(tmp_path)] == ["step", "100"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("time,loss\n1,2\n", "first column .* 'step', got 'time'"), ("step,a\n100\n", "2 cells .* line 2"), ("step,a\nx,1\n", "a step in line 2")],
)
def test_csv_of_another_program_is_refused_and_left_alone(tmp_path, text, message):
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        CsvFile(tmp_path, resume_step=100)
    assert path.read_text() == text


EVALUATED = "Evaluation/Return Mean"


def test_csv_puts_evaluations_where_their_steps_are(tmp_path):
    """They come late: after the summaries that follow their checkpoint. Rows of summaries keep their cells; later ones go below."""
    writer = CsvFile(tmp_path)
    writer.evaluation(50, {EVALUATED: 0.5})
    for step in (100, 200, 300):
        writer.write(summary(step))
    writer.evaluation(150, {EVALUATED: 1.5})
    writer.evaluation(200, {EVALUATED: 2.5})
    writer.write(summary(400))
    with pytest.raises(ValueError, match="after step 200"):
        writer.evaluation(200, {EVALUATED: 1.0})
    writer.close()
    header, *rows = read_table(tmp_path)
    assert header == ["step", "elapsed_s", "episodes", "reward_std", "longest_episode", EVALUATED, CUMULATIVE_REWARD]
    assert [(row[0], row[1], row[-2], row[-1]) for row in rows] == [
        ("50", "", "0.5", ""), ("100", "10.0", "", "1.0"), ("150", "", "1.5", ""), ("200", "20.0", "2.5", "2.0"), ("300", "30.0", "", "3.0"),
        ("400", "40.0", "", "4.0")]
    resumed = CsvFile(tmp_path, resume_step=170)
    resumed.close()
    assert [row[0] for row in read_table(tmp_path)] == ["step", "50", "100", "150"]


@pytest.mark.parametrize("purge", [True, False])
def test_tensorboard_keeps_evaluations_that_came_after_later_summaries(tmp_path, purge):
    """A resume takes out what is after the checkpoint, and nothing that was written after that."""
    writer = TensorBoardFiles(tmp_path)
    for step in (100, 200, 300):
        writer.write(summary(step))
    for step in (50, 150, 250):
        writer.evaluation(step, {EVALUATED: step / 100})
    writer.close()
    resumed = TensorBoardFiles(tmp_path, resume_step=170)
    resumed.evaluation(250, {EVALUATED: 9.0})
    resumed.write(summary(200))
    resumed.close()
    assert read_curves(tmp_path, purge) == {CUMULATIVE_REWARD: [(100, 1.0), (200, 2.0)], EVALUATED: [(50, 0.5), (150, 1.5), (250, 9.0)]}
