"""Settings of writers: which ones there are besides the files of a run, each with its options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from trainers.setting_types import Settings, Text

_SECRET = re.compile(r"(api_?key|secret_?key|access_?key|token|passw(or)?d|secret|authorization)$", re.IGNORECASE)
_USERINFO = re.compile(r"\w[\w+.-]*://[^/\s@]*@")


class WriterSettings(Settings):
    """A writer: its name alone, or a section with its options beside ``type``, which are checked when it is made."""

    model_config = ConfigDict(extra="allow")

    type: Text
    """mlflow, wandb, prometheus, a name that an installed package gives, or a class of your own as module:Class (see docs/trackers.md)."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"type": data}
        if not isinstance(data, Mapping | cls):
            raise PydanticCustomError("writer_type", "{message}", {"message": f"expected the name of a writer or a section with type, received {data!r:.80}"})
        if isinstance(data, Mapping) and "type" not in data:
            raise PydanticCustomError("writer_type", "{message}", {"message": f"expected type with the name of the writer, received {', '.join(map(str, data)) or 'nothing'}"})
        return data

    @model_validator(mode="after")
    def _may_be_saved(self) -> WriterSettings:
        """The configuration is saved with the run and shown to trackers."""
        for key, value in _everything_in(self.options):
            if isinstance(value, str) and _USERINFO.match(value):
                raise PydanticCustomError("secret", "{message}", {"message": (
                    f"expected {key} without user and password, since this file is saved with the run, and shown to trackers; "
                    "let the writer read them from environment variables")})
            if _SECRET.search(key):
                raise PydanticCustomError("secret", "{message}", {"message": (
                    f"expected no {key} here: this file is saved with the run, and shown to trackers; let the writer read it from an environment variable")})
            try:
                yaml.safe_dump(value)
            except yaml.YAMLError:
                raise PydanticCustomError("not_plain", "{message}", {"message": (
                    f"expected numbers, text, lists and mappings, which can be saved with the run, received {type(value).__name__} in {key}")}) from None
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(core_schema)]}

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the type."""
        return dict(self.model_extra or {})


def _everything_in(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values, those of nested mappings included; what a list holds goes by the key of the list."""
    for key, value in options.items():
        yield str(key), value
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, Mapping):
                yield from _everything_in(part)
            elif part is not value:
                yield str(key), part
