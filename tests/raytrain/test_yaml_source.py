"""YAML reading: lines, duplicates, tabs, numbers."""

from __future__ import annotations

import pytest

from raytrain.errors import ConfigError
from raytrain.yaml_source import parse_value, parse_yaml


def the_problem(text: str):
    """The single problem of text that cannot be read."""
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "runs/file.yaml")
    (problem,) = caught.value.problems
    return problem


def test_every_key_has_its_line():
    document, problems = parse_yaml("# first\na: 1\nb:\n  c:\n    - x\n    - {d: 2}\n")
    assert not problems
    assert document.data == {"a": 1, "b": {"c": ["x", {"d": 2}]}}
    assert document.lines[("a",)] == 2
    assert document.lines[("b", "c")] == 4
    assert document.lines[("b", "c", "0")] == 5
    assert document.lines[("b", "c", "1", "d")] == 6


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("5e5", 5e5),
        ("5.0e5", 5e5),
        ("-1E+3", -1000.0),
        (".5e1", 5.0),
        ("1_000", 1000),
        ("1_000e-3", 1.0),
        ("0.5", 0.5),
        ("12", 12),
    ],
)
def test_numbers_are_numbers(text, value):
    """C86: PyYAML alone reads 3e-4 and 5e5 as text."""
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize("text", ["'3e-4'", "e5", "3e", "CartPole-v1", "my_env:make", "2024-05-01", "1e5x"])
def test_text_stays_text(text):
    assert parse_value(text) == text.strip("'")


def test_duplicate_keys_are_all_reported_with_both_lines():
    _, problems = parse_yaml("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\na: 4\n", "runs/file.yaml")
    assert [(problem.path, problem.line) for problem in problems] == [("b.c", 5), ("a", 6)]
    assert "line 3" in problems[0].message and "line 5" in problems[0].message
    assert "line 1" in problems[1].message and "line 6" in problems[1].message
    assert problems[0].place == "file.yaml:5"


def test_the_same_key_in_two_sections_is_no_duplicate():
    assert parse_yaml("a: {x: 1}\nb: {x: 1}\n")[1] == []


def test_tab_as_indentation_is_named_with_its_line():
    problem = the_problem("a: 1\nb:\n  c: 1\n\td: 2\n\te: 3\n")
    assert problem.line == 4
    assert "tab" in problem.message and "line 5" in problem.message


def test_tab_between_values_is_named_and_one_inside_quotes_is_fine():
    problem = the_problem("a: 1\nb: 2\t# why\n")
    assert (problem.line, problem.value) == (2, "\t")
    assert parse_yaml("b: 'x\ty'\n")[0].data == {"b": "x\ty"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", 3),
        ("a: 1\n b: 2\n", 2),
        ("a: 1\nb: 'open\n", 3),
        ("a: 1\nb: !!python/name:os.system\n", 2),
        ("a: 1\nb: *nowhere\n", 2),
        ("a: 1\nb: \x00\n", 2),
        ("a: 1\n---\nb: 2\n", 2),
    ],
)
def test_syntax_errors_have_a_line(text, line):
    problem = the_problem(text)
    assert (problem.line, problem.source) == (line, "file.yaml")
    assert problem.message.startswith("expected YAML")


def test_scalar_that_only_looks_like_a_number():
    assert "expected YAML" in the_problem("a: 0x_\n").message


def test_alias_that_contains_itself_is_refused():
    problem = the_problem("a: &a\n  b: *a\n")
    assert (problem.path, problem.line) == ("a.b", 1)


def test_merge_keys_have_lines_and_own_keys_win():
    document, problems = parse_yaml("base: &base\n  x: 1\n  y: 2\nuser:\n  <<: *base\n  x: 3\n")
    assert not problems
    assert document.data["user"] == {"x": 3, "y": 2}
    assert document.lines[("user", "x")] == 6
    assert document.lines[("user", "y")] == 3


def test_aliases_become_separate_values():
    data = parse_yaml("a: &a {x: [1]}\nb: *a\n")[0].data
    data["a"]["x"].append(2)
    assert data["b"] == {"x": [1]}


def test_a_problem_without_a_line_of_its_own_is_placed_above():
    document, _ = parse_yaml("a:\n  b: 1\n", "file.yaml")
    assert document.problem(("a", "missing", "deep"), None, "…").line == 1
    assert document.problem(("missing",), None, "…").line is None
    document.overridden.add(("a", "b"))
    assert document.problem(("a", "b"), None, "…").place == "command line"
