"""Settings of a sweep: many runs of one configuration with other parameters, and who decides which of them go on."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PrivateAttr, Strict, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

from raytrain.stats import CUMULATIVE_REWARD
from raytrain.yaml_source import Document
from trainers.setting_types import Flag, Number, PositiveFloat, PositiveInt, Settings, Text, Whole, contradiction

_FORMS = {
    "uniform": "[from, to]", "loguniform": "[from, to]", "quniform": "[from, to, step]", "qloguniform": "[from, to, step]", "randint": "[from, to]",
    "lograndint": "[from, to]",
}
"""Ways to draw a number, and what stands behind each."""


class DrawSettings(Settings):
    """How one parameter is drawn; exactly one of the keys. Names and meaning are Ray Tune's."""

    grid: tuple[Any, ...] | None = None
    """Each of these values, with every value of the other grids."""
    choice: tuple[Any, ...] | None = None
    """One of these values, each as likely."""
    uniform: Any = None
    """``[from, to]``: a number between them."""
    loguniform: Any = None
    """``[from, to]``: a number between them, each order of magnitude as likely."""
    quniform: Any = None
    """``[from, to, step]``: as uniform, rounded to a multiple of ``step``."""
    qloguniform: Any = None
    """``[from, to, step]``: as loguniform, rounded to a multiple of ``step``."""
    randint: Any = None
    """``[from, to]``: a whole number, ``to`` left out."""
    lograndint: Any = None
    """``[from, to]``: a whole number, ``to`` left out, each order of magnitude as likely."""

    @model_validator(mode="after")
    def _one_way(self) -> DrawSettings:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise _refused(f"expected one of {', '.join(type(self).model_fields)}, received {' and '.join(given) or 'none'}")
        way, value = given[0], getattr(self, given[0])
        if way in _FORMS:
            _check_range(way, value)
        elif not value:
            raise _refused(f"expected at least one value in {way}, received an empty list")
        return self

    @property
    def way(self) -> str:
        """The key that was given."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def values(self) -> tuple[Any, ...]:
        """All values of a grid or a choice; of a range its corners."""
        value = tuple(getattr(self, self.way))
        if self.way not in _FORMS:
            return value
        low, high = value[0], value[1] - 1 if self.way.endswith("randint") else value[1]
        return (low, high) if low != high else (low,)

    def nearest_allowed(self, value: Any) -> Any:
        """`value`, which was made from one that was drawn, within the range and on its grid of steps."""
        if self.way not in _FORMS:
            return value
        corners = self.values
        value = min(max(value, corners[0]), corners[-1])
        if self.way.startswith("q"):
            step = getattr(self, self.way)[2]
            value = round(value / step) * step
        return round(value) if self.way.endswith("randint") else value


def _refused(message: str) -> PydanticCustomError:
    return PydanticCustomError("draw", "{message}", {"message": message})


def _check_range(way: str, value: Any) -> None:
    form = _FORMS[way]
    numbers = list(value) if isinstance(value, list | tuple) else []
    if len(numbers) != form.count(",") + 1 or not all(isinstance(n, int | float) and not isinstance(n, bool) and isfinite(n) for n in numbers):
        raise _refused(f"expected {way}: {form}, received {value!r}")
    if numbers[0] >= numbers[1]:
        raise _refused(f"expected {way}: {form} with from below to, received {value!r}")
    if "log" in way and numbers[0] <= 0:
        raise _refused(f"expected {way} from a number above 0, received {value!r}; a logarithm has no place for others")
    if way.endswith("randint") and not all(float(n).is_integer() for n in numbers):
        raise _refused(f"expected whole numbers in {way}, received {value!r}")
    if way.startswith("q") and numbers[2] <= 0:
        raise _refused(f"expected a step above 0 in {way}, received {value!r}")


class FifoSettings(Settings):
    """Every trial runs to its end."""

    type: Literal["fifo"] = "fifo"
    """No trial is stopped."""


class AshaSettings(Settings):
    """Asynchronous successive halving: at each rung only the best share goes on."""

    type: Literal["asha"]
    """Which scheduler."""
    grace_period: PositiveInt | None = None
    """Agent steps before any trial is stopped: the first rung; ``null`` is a tenth of ``max_t``."""
    max_t: PositiveInt | None = None
    """Agent steps above which there is no rung; ``null`` is the run's ``max_steps``."""
    reduction_factor: Annotated[Number, Field(gt=1.0)] = 4.0
    """One in so many goes on at each rung, and each rung is at so many times the agent steps of the one before."""
    brackets: PositiveInt = 1
    """Groups of trials; each has its first rung later than the one before."""

    @model_validator(mode="after")
    def _some_rung(self) -> AshaSettings:
        if self.grace_period is not None and self.max_t is not None and self.grace_period > self.max_t:
            raise contradiction("grace_period", "max_t", f"expected grace_period of at most max_t={self.max_t}, received {self.grace_period}")
        return self


class MedianSettings(Settings):
    """A trial is stopped whose best metric is below the median of the others' means so far."""

    type: Literal["median"]
    """Which scheduler."""
    grace_period: PositiveInt | None = None
    """Agent steps before any trial is stopped; ``null`` is a tenth of the run's ``max_steps``."""
    min_samples_required: PositiveInt = 3
    """Trials that there must be to compare with."""


class PbtSettings(Settings):
    """Population-based training: bad trials go on from good ones' checkpoints, with parameters that are changed a little."""

    type: Literal["pbt"]
    """Which scheduler."""
    perturbation_interval: PositiveInt | None = None
    """Agent steps between two comparisons of a trial with the others; ``null`` is a tenth of the run's ``max_steps``."""
    burn_in_period: Annotated[int, Strict(), Field(ge=0), Whole] = 0
    """Agent steps before the first comparison."""
    synch: Flag = False
    """Let trials wait for each other at each comparison: each is then compared at the same agent steps, and starts anew from its checkpoint."""
    quantile_fraction: Annotated[Number, Field(gt=0.0, le=0.5)] = 0.25
    """Share of the trials that is replaced, and share that is copied."""
    resample_probability: Annotated[Number, Field(ge=0.0, le=1.0)] = 0.25
    """How often a parameter is drawn anew instead of being changed."""
    perturbation_factors: tuple[PositiveFloat, PositiveFloat] = (1.2, 0.8)
    """A parameter is multiplied by one of these; of a list, a neighbour is taken."""


SCHEDULERS = {"fifo": FifoSettings, "asha": AshaSettings, "pbt": PbtSettings, "median": MedianSettings}


def _scheduler_type(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) and kind in SCHEDULERS else None


AnyScheduler = Annotated[
    Annotated[FifoSettings, Tag("fifo")] | Annotated[AshaSettings, Tag("asha")] | Annotated[PbtSettings, Tag("pbt")] | Annotated[MedianSettings, Tag("median")],
    Discriminator(_scheduler_type, custom_error_type="scheduler_type", custom_error_message=f"expected type: {', '.join(SCHEDULERS)}"),
]


class SweepSettings(Settings):
    """A sweep: which run, which parameters of it, and how trials are compared."""

    config: Text
    """The run's YAML file, relative to the sweep file."""
    parameters: dict[str, DrawSettings]
    """Dotted path of a key of the run → how it is drawn."""
    num_samples: PositiveInt = 1
    """How often everything that is not a grid is drawn; with grids, so often for each of their combinations."""
    metric: Text = CUMULATIVE_REWARD
    """What trials are compared by, at each summary: a column of metrics.csv."""
    behavior: Text | None = None
    """Whose metric it is; needed where the environment has several behaviors."""
    mode: Literal["max", "min"] = "max"
    """Whether more of it is better, or less."""
    scheduler: AnyScheduler = FifoSettings()
    """Who decides which trials go on."""
    max_concurrent_trials: PositiveInt | None = None
    """Most trials at once; ``null`` is as many as the cluster has room for."""
    time_budget_s: PositiveFloat | None = None
    """Seconds after which the sweep is stopped and saved."""
    seed: Annotated[int, Strict(), Field(ge=-1), Whole] = -1
    """Of the draws, and of trials whose run leaves its seed open; -1 draws one and saves it."""

    _document: Document = PrivateAttr(default_factory=lambda: Document("the sweep", {}))

    @field_validator("parameters")
    @classmethod
    def _some_parameter(cls, parameters: dict[str, DrawSettings]) -> dict[str, DrawSettings]:
        if not parameters:
            raise PydanticCustomError("no_parameter", "expected at least one parameter, such as behaviors.NAME.hyperparameters.learning_rate: {grid: [1e-3, 1e-4]}")
        return parameters
