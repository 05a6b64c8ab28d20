"""Chat templates: a conversation to the one text that the model was trained on, rendered as Transformers does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.nodes
import jinja2.parser
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tinyllm.errors import InputError

Message = Mapping[str, Any]
"""One turn of a conversation: at least `role` and `content`."""


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant said, for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A template in a sandbox: it can neither change what it is given nor reach out of it.

    Args:
        source: Jinja text.
        variables: what else it may use, such as `bos_token`.
        origin: the file it comes from, for error messages.

    Raises:
        InputError: it is no valid template.
    """

    def __init__(self, source: str, variables: Mapping[str, str], origin: Path) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
        self._origin = origin
        self._variables = dict(variables)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise InputError(
                f"{origin}: the chat template is not valid ({error}); copy the file again"
            ) from None

    @classmethod
    def from_directory(cls, directory: str | Path) -> ChatTemplate:
        """The template of a checkpoint: `chat_template.jinja`, else that of `tokenizer_config.json`.

        Raises:
            InputError: there is none, or it can't be read.
        """
        directory = Path(directory)
        config_path = directory / "tokenizer_config.json"
        config = _read_config(config_path)
        own_file = directory / "chat_template.jinja"
        if own_file.is_file():
            return cls(own_file.read_text(encoding="utf-8"), _special_tokens(config), own_file)
        source = config.get("chat_template")
        if isinstance(source, list):
            # Several by name, for instance one for the use of tools.
            source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
        if not isinstance(source, str):
            raise InputError(
                f"{directory}: has no chat template (chat_template.jinja, or in tokenizer_config.json); "
                "give the prompt as plain text"
            )
        return cls(source, _special_tokens(config), config_path)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The text of a conversation, up to where the assistant is to go on. It holds its special tokens.

        Raises:
            InputError: the template refuses the conversation, or fails on it.
        """
        try:
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._variables,
            )
        # A template is a program: on a conversation that it does not expect it can fail in any way.
        except Exception as error:
            raise InputError(f"{self._origin}: the chat template refuses the conversation: {error}") from None


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes for HTML, which no model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error}); copy the file again") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: holds no JSON object; copy the file again")
    return config


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like: each a text, or an object that holds it."""
    tokens = {}
    for key, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            tokens[key] = content
    return tokens
