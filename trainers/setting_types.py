"""What all settings models are made of: strict numbers, and their base class."""

from __future__ import annotations

from numbers import Integral
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError


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


class Settings(BaseModel):
    """Base of every settings model: frozen, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def contradiction(field: str, other: str, message: str) -> PydanticCustomError:
    """Error of two fields of one model that do not fit together, to be raised in a model validator.

    Args:
        field: where it is reported.
        other: the field it clashes with.
        message: names both fields and both values, and says what to do.
    """
    return PydanticCustomError("contradiction", "{message}", {"message": message, "field": field, "other": other})


Encoder = Literal["simple", "nature_cnn", "resnet", "match3", "fully_connected"]
