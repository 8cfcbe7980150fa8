"""Settings of the environment's parameters: constant, drawn for each episode, or changed lesson by lesson."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import StringConstraints, field_validator, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from envs.own_code import SAMPLER
from trainers.setting_types import Flag, NonNegativeFloat, NonNegativeInt, Number, Settings, contradiction, refuse_unknown

if TYPE_CHECKING:
    from envs.curriculum import Lesson
    from envs.randomization import Sampler

Name = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]

ARGUMENTS = {"constant": ("value",), "uniform": ("min_value", "max_value"), "gaussian": ("mean", "st_dev"), "multirangeuniform": ("intervals",)}
"""``sampler_type`` → the keys of its ``sampler_parameters``; all are needed."""


class _Sparse(Settings):
    """Saved without the keys that say nothing."""

    @model_serializer(mode="wrap")
    def _without_nulls(self, dump: Any) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value is not None}


class SamplerParameters(_Sparse):
    """Arguments of a sampler; which, ``sampler_type`` says."""

    value: Number | None = None
    """Of ``constant``: the value."""
    min_value: Number | None = None
    """Of ``uniform``: smallest value."""
    max_value: Number | None = None
    """Of ``uniform``: largest value."""
    mean: Number | None = None
    """Of ``gaussian``: mean."""
    st_dev: NonNegativeFloat | None = None
    """Of ``gaussian``: standard deviation."""
    intervals: tuple[tuple[Number, Number], ...] | None = None
    """Of ``multirangeuniform``: list of ``[low, high]``, chosen in proportion to their widths."""

    @field_validator("intervals", mode="before")
    @classmethod
    def _pairs_in_order(cls, intervals: Any) -> Any:
        def is_pair(pair: Any) -> bool:
            return isinstance(pair, list | tuple) and len(pair) == 2 and all(type(x) in (int, float) for x in pair) and pair[0] <= pair[1]

        if intervals is not None and not (isinstance(intervals, list | tuple) and intervals and all(map(is_pair, intervals))):
            raise PydanticCustomError("intervals", "{message}", {"message": (
                f"expected a list of [low, high] with low ≤ high, such as [[0, 1], [3, 4.5]], received {intervals!r:.80}")})
        return intervals

    @model_validator(mode="after")
    def _min_below_max(self) -> SamplerParameters:
        if self.min_value is not None and self.max_value is not None and self.min_value > self.max_value:
            raise contradiction("min_value", "max_value", (
                f"expected min_value ≤ max_value, received min_value={self.min_value:g} and max_value={self.max_value:g}; exchange them"))
        return self


class SamplerSettings(_Sparse):
    """How a parameter is drawn for each episode of each environment; a plain number is a constant."""

    sampler_type: Literal["uniform", "gaussian", "multirangeuniform", "constant"] | None = None
    """Distribution; every argument of it is needed in ``sampler_parameters``."""
    sampler_parameters: SamplerParameters | None = None
    """Its arguments."""
    sampler: Name | None = None
    """In place of both, a class of your own with a method sample(rng), as module:Class or by an installed name (see docs/extending.md)."""
    kwargs: dict[str, Any] | None = None
    """Arguments of that class, passed on unchanged."""

    @field_validator("sampler")
    @classmethod
    def _known(cls, sampler: str | None) -> str | None:
        if sampler is not None:
            refuse_unknown(SAMPLER, sampler)
        return sampler

    @model_validator(mode="before")
    @classmethod
    def _number_is_a_constant(cls, data: Any) -> Any:
        if isinstance(data, int | float) and not isinstance(data, bool):
            return {"sampler_type": "constant", "sampler_parameters": {"value": data}}
        if not isinstance(data, Mapping | cls):
            raise PydanticCustomError("parameter_type", "expected a number or a section of keys")
        return data

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "number"}, handler(core_schema)]}

    @model_validator(mode="after")
    def _one_way_with_its_arguments(self) -> SamplerSettings:
        ways = [key for key in ("sampler_type", "sampler", "curriculum") if getattr(self, key, None) is not None]
        if len(ways) != 1:
            offered = "sampler_type, sampler or curriculum" if "curriculum" in type(self).model_fields else "sampler_type or sampler"
            raise PydanticCustomError("ways", "{message}", {"message": (
                f"expected one of {offered}, received {' and '.join(ways) or 'none of them'}; a number alone is a constant")})
        for key, way in (("sampler_parameters", "sampler_type"), ("kwargs", "sampler")):
            if getattr(self, key) is not None and ways[0] != way:
                raise contradiction(key, ways[0], f"expected {key} together with {way} only, received it with {ways[0]}; remove it")
        if self.sampler_type is not None:
            self._check_arguments()
        return self

    def _check_arguments(self) -> None:
        needed = ARGUMENTS[self.sampler_type]
        given = [] if self.sampler_parameters is None else list(self.sampler_parameters.model_dump())
        if sorted(given) == sorted(needed):
            return
        unknown = [key for key in given if key not in needed]
        place = f"sampler_parameters.{unknown[0]}" if unknown else "sampler_parameters"
        raise contradiction(place, "sampler_type", (
            f"expected {' and '.join(needed)} in the sampler_parameters of sampler_type: {self.sampler_type}, received "
            f"{' and '.join(given) or 'none'}"))

    def made(self, import_dirs: tuple[str, ...] = ()) -> Sampler:
        """The sampler; a class of the user's is looked for in `import_dirs`, when it is first used."""
        from envs.randomization import (  # a configuration is checked without NumPy
            Constant,
            Gaussian,
            MultiRangeUniform,
            OwnSampler,
            Uniform,
        )

        if self.sampler is not None:
            return OwnSampler(self.sampler, dict(self.kwargs or {}), import_dirs)
        kinds = {"constant": Constant, "uniform": Uniform, "gaussian": Gaussian, "multirangeuniform": MultiRangeUniform}
        return kinds[self.sampler_type](*(getattr(self.sampler_parameters, key) for key in ARGUMENTS[self.sampler_type]))


class CriteriaSettings(Settings):
    """When a lesson is over."""

    behavior: Name
    """Whose episodes count."""
    measure: Literal["reward", "progress", "elo"] = "reward"
    """``reward``: mean return of the last episodes; ``progress``: agent steps / ``max_steps``; ``elo``: the rating in self-play."""
    threshold: Number = 0.0
    """The lesson is over when the measure is above it."""
    min_lesson_length: NonNegativeInt = 0
    """Episodes, begun in this lesson, that have to be finished first; also how many the mean return is taken over."""
    signal_smoothing: Flag = True
    """Compare 0.25 × the value of the check before + 0.75 × the mean return."""
    require_reset: Flag = False
    """When the lesson is over, begin a new episode everywhere at once; else each environment does at its next reset."""

    @model_validator(mode="after")
    def _progress_is_a_share(self) -> CriteriaSettings:
        if self.measure == "progress" and not 0.0 <= self.threshold < 1.0:
            raise contradiction("threshold", "measure", (
                f"expected 0 ≤ threshold < 1 with measure: progress, received threshold={self.threshold:g}; it is a share of max_steps that "
                "has to be passed"))
        return self


class LessonSettings(Settings):
    """One stage of a curriculum."""

    name: Name
    """Shown when the lesson begins; each of a parameter's lessons has another one."""
    value: SamplerSettings
    """A number, or how the parameter is drawn."""
    completion_criteria: CriteriaSettings | None = None
    """When the lesson is over; every lesson but the last needs them."""


class ParameterSettings(SamplerSettings):
    """One parameter of the environment: a number, a sampler or a curriculum."""

    curriculum: tuple[LessonSettings, ...] | None = None
    """List of lessons, the first one first."""

    @model_validator(mode="after")
    def _lessons_follow_one_another(self) -> ParameterSettings:
        lessons = self.curriculum
        if lessons is None:
            return self
        if not lessons:
            raise contradiction("curriculum", "curriculum", "expected at least one lesson, received an empty list")
        names: list[str] = []
        for index, lesson in enumerate(lessons):
            if lesson.name in names:
                raise contradiction(f"curriculum.{index}.name", "curriculum", (
                    f"expected another name for each lesson, received {lesson.name} for lessons {names.index(lesson.name) + 1} and {index + 1}"))
            names.append(lesson.name)
            if lesson.completion_criteria is None and index + 1 < len(lessons):
                raise contradiction(f"curriculum.{index}", "curriculum", (
                    f"expected completion_criteria for lesson {index + 1} ({lesson.name}), received none; only the last lesson never ends"))
        return self

    def made_lessons(self, import_dirs: tuple[str, ...] = ()) -> tuple[Lesson, ...]:
        """The lessons, at least one."""
        from envs.curriculum import Criteria, Lesson

        last = len(self.curriculum) - 1
        return tuple(
            Lesson(lesson.name, lesson.value.made(import_dirs), None if i == last else Criteria(**lesson.completion_criteria.model_dump()))
            for i, lesson in enumerate(self.curriculum)
        )


def made_parameters(
    settings: Mapping[str, ParameterSettings], import_dirs: tuple[str, ...] = (),
) -> dict[str, Sampler | tuple[Lesson, ...]]:
    """Name → sampler or lessons, as `envs.curriculum.Curricula` takes them."""
    return {name: p.made(import_dirs) if p.curriculum is None else p.made_lessons(import_dirs) for name, p in settings.items()}
