"""Request fields that both completion endpoints share, and their sampling settings.

An unknown field is rejected by name, since ignoring it could change the result.
"""

import json
import secrets
from collections.abc import Sequence, Sized
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from legos.chat.schemas import closed
from legos.records.message import MAX_BIAS, Filters, Sampling
from legos.server.bodies import ONE_ERROR, Body, Ids, Text
from legos.server.problems import Problem

MAX_SEED = 1 << 64
MOST_CHOICE_CHARACTERS = 32_768  # total over all choices of a request; each may be a token
MOST_SCHEMA_CHARACTERS = 65_536
MOST_STOPS = 64

ShortText = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Stops = Annotated[list[ShortText], Field(max_length=MOST_STOPS), ONE_ERROR]
Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = Field(False, description="Token counts in a last event.")
    include_obfuscation: bool = Field(False, description="Ignored: no event is padded.")


class JsonSchema(Body):
    """A schema that the answer must satisfy."""

    name: str = "answer"
    description: str | None = None
    json_schema: dict[str, Any] = Field(default={}, alias="schema")
    strict: bool | None = None

    @field_validator("json_schema")
    @classmethod
    def _bounded(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """Refuse a large schema while the body is parsed; a thread parses long bodies."""
        check_schema(json.dumps(schema))
        return schema


class ResponseFormat(Body):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None

    def schema_text(self) -> str | None:
        """The JSON schema of the answer as text, or None if the answer is free text.

        Raises:
            Problem: the type is json_schema, but there is no schema.
        """
        if self.type == "text":
            return None
        if self.type == "json_object":
            return '{"type": "object"}'
        if self.json_schema is None:
            raise Problem(
                400, "response_format json_schema needs json_schema.schema", param="response_format"
            )
        return json.dumps(closed(self.json_schema.json_schema))


class ModelFields(Body):
    """The model or adapter that a request names."""

    model: str | None = Field(
        None, description="The base model's name, base, an adapter's name, or NAME@VERSION."
    )
    adapter: str | None = Field(
        None, description="The same names as in model, over which it takes precedence."
    )


class SamplingFields(ModelFields):
    """Fields that both endpoints have."""

    temperature: float | None = Field(1.0, ge=0, le=100)
    top_p: float | None = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(0, ge=-1, le=2**31, description="0 and -1 keep all.")
    min_p: float | None = Field(0.0, ge=0, le=1)
    presence_penalty: float | None = Field(0.0, ge=-2, le=2)
    frequency_penalty: float | None = Field(0.0, ge=-2, le=2)
    repetition_penalty: float | None = Field(1.0, ge=0.01, le=100)
    logit_bias: dict[str, Bias] | None = Field(
        None, max_length=1024, description="Token id to the value added to its logit."
    )
    max_tokens: int | None = Field(None, ge=1)
    stop: ShortText | Stops | None = None
    stop_token_ids: Ids | None = Field(None, max_length=64)
    ignore_eos: bool = Field(False, description="The model's end tokens do not end the answer.")
    seed: int | None = Field(
        None,
        ge=-(2**63),
        lt=MAX_SEED,
        description="Answer i of a prompt uses seed + i. Without one, seeds are random.",
    )
    n: int | None = Field(1, ge=1, le=128)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: bool = Field(
        False,
        description="Also answer with prompt_token_ids, token_ids, token_logprobs and versions.",
    )
    choices: Annotated[list[Text], ONE_ERROR] | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description=f"The legal answers, of {MOST_CHOICE_CHARACTERS} characters together.",
    )
    restrict: bool = Field(False, description="Only choices can be answered.")
    user: str | None = Field(None, description="Ignored.")
    metadata: dict[str, Any] | None = Field(None, description="Ignored.")
    store: Literal[False] | None = None
    service_tier: str | None = Field(None, description="Ignored.")
    safety_identifier: str | None = Field(None, description="Ignored.")
    prompt_cache_key: str | None = Field(None, description="Ignored.")
    prompt_cache_options: dict[str, Any] | None = Field(None, description="Ignored.")
    prompt_cache_retention: str | None = Field(None, description="Ignored.")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop texts."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def first_seed(self) -> int:
        """The seed of the first answer."""
        return secrets.randbits(63) if self.seed is None else self.seed % MAX_SEED

    def sampling(
        self, *, max_tokens: int | None, alternatives: int | None, json_schema: str | None = None
    ) -> Sampling:
        """Sampling settings of the first answer.

        Args:
            max_tokens: default for max_tokens; None if the choices limit the length.
            alternatives: number of most probable tokens to report at each position; None: also no
                log-probabilities.
            json_schema: schema of the answer, if the endpoint requires one.

        Raises:
            Problem: fields contradict each other or exceed a limit.
        """
        temperature = 1.0 if self.temperature is None else self.temperature
        check_choices(self.choices or ())
        if json_schema is None and self.response_format is not None:
            json_schema = self.response_format.schema_text()
        check_schema(json_schema)
        if json_schema is not None and self.choices:
            raise Problem(400, "choices and a JSON schema contradict each other", param="choices")
        return Sampling(
            temperature=temperature,
            max_tokens=self.max_tokens or max_tokens,
            stop=self.stops,
            seed=self.first_seed(),
            choices=tuple(self.choices or ()),
            restrict=self.restrict,
            stop_ids=tuple(self.stop_token_ids or ()),
            ignore_end=self.ignore_eos,
            filters=self._filters(),
            json_schema=json_schema,
            num_alternatives=alternatives or 0,
            raw_logprobs=alternatives is not None,
        )

    def _filters(self) -> Filters | None:
        """Changes to the distribution other than the temperature; None if there are none."""
        names = Filters.__struct_fields__
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        given |= {"top_k": max(self.top_k or 0, 0), "logit_bias": self._bias()}
        filters = Filters(**given)
        return None if filters == _NO_FILTERS else filters

    def _bias(self) -> tuple[tuple[int, float], ...]:
        bias = self.logit_bias or {}
        for token in bias:
            if not (token.isascii() and token.isdigit() and len(token) < 10):
                raise Problem(400, "logit_bias has a key that is no token id", param="logit_bias")
        return tuple(sorted((int(token), value) for token, value in bias.items()))


_NO_FILTERS = Filters()


def check_choices(choices: Sequence[Sized], unit: str = "characters") -> None:
    """Reject choices whose prefix tree, or whose score, would take too much.

    Args:
        choices: the choices of one prompt, as texts or as token ids.
        unit: what their lengths count.

    Raises:
        Problem: the choices are too long together.
    """
    size = sum(map(len, choices))
    what = f"choices have {size} {unit} together"
    check_most(what, size, MOST_CHOICE_CHARACTERS, param="choices")


def check_schema(schema: str | None) -> None:
    """Reject a JSON schema whose grammar would take too much.

    Raises:
        Problem: it is too long.
    """
    size = len(schema or "")
    what = f"the JSON schema has {size} characters"
    check_most(what, size, MOST_SCHEMA_CHARACTERS, param="response_format")


def check_most(what: str, size: int, most: int, *, param: str) -> None:
    """Refuse a part of a request that would take too much; ``what`` says its size."""
    if size > most:
        raise Problem(400, f"{what}; expected at most {most}", param=param)
