"""What all settings models are made of: strict numbers, and their base class."""

from __future__ import annotations

from numbers import Integral
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from envs.own_code import Kind, OwnCodeError, check_reference


def _whole_number(value: Any) -> Any:
    """``5e5`` and a NumPy integer as ``int``; anything else unchanged, for the strict check that follows."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return value


# Strict, because pydantic otherwise reads true as 1, "3" as 3 and "yes" as true: a slip that should be named, not guessed at.
Flag = Annotated[bool, Strict()]
# The conversion stands last: bounds behind it would be checked but be missing in the JSON Schema.
Whole = BeforeValidator(_whole_number)
PositiveInt = Annotated[int, Strict(), Field(ge=1), Whole]
NonNegativeInt = Annotated[int, Strict(), Field(ge=0), Whole]
Number = Annotated[float, Strict()]
PositiveFloat = Annotated[Number, Field(gt=0.0)]
NonNegativeFloat = Annotated[Number, Field(ge=0.0)]
Schedule = Literal["linear", "constant"]
Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
# One name or pattern stands for a list of one; the conversion stands last, as above.
AgentNames = Annotated[
    tuple[Annotated[str, Strict(), StringConstraints(min_length=1)], ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string", "minLength": 1}}]}),
]
AgentGroups = dict[str, AgentNames]


def _team(value: Any) -> Any:
    """A whole number, or names or patterns → whole numbers; anything else gets one error, not one for each form that it might have."""
    numbers = list(value.values()) if isinstance(value, dict) and value else [value]
    is_named = not isinstance(value, dict) or all(isinstance(name, str) for name in value)
    if value is None or (is_named and all(isinstance(n, int | float) and not isinstance(n, bool) and float(n).is_integer() for n in numbers)):
        return value
    raise PydanticCustomError("team", "{message}", {"message": (
        "expected a whole number for all of the behavior's agents, or names or patterns of agents with a number each, such as "
        f'{{"red_*": 0, "blue_*": 1}}, received {value!r:.80}')})


Team = Annotated[
    Annotated[int, Strict(), Whole] | dict[str, Annotated[int, Strict(), Whole]] | None, BeforeValidator(_team),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "null"}]}),
]
"""Sides of a behavior's agents."""


class Settings(BaseModel):
    """Base of every settings model: frozen, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def refuse_unknown(kind: Kind, reference: str) -> None:
    """`envs.own_code.check_reference` within a validator."""
    try:
        check_reference(kind, reference)
    except OwnCodeError as error:
        raise PydanticCustomError("no_own_code", "{message}", {"message": str(error).removeprefix(f"{kind.key}: ")}) from None


def contradiction(field: str, other: str, message: str) -> PydanticCustomError:
    """Error of two fields of one model that do not fit together, to be raised in a model validator.

    Args:
        field: where it is reported.
        other: the field it clashes with.
        message: names both fields and both values, and says what to do.
    """
    return PydanticCustomError("contradiction", "{message}", {"message": message, "field": field, "other": other})


Encoder = Literal["simple", "nature_cnn", "resnet", "match3", "fully_connected"]
