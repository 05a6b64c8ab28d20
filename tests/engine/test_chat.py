"""Chat templates render as Transformers renders them, and can do no harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tinyllm.engine.chat import ChatTemplate
from tinyllm.errors import InputError

MESSAGES = [
    {"role": "system", "content": "Be <brief> & 'kind'."},
    {"role": "user", "content": "Grüße, 世界"},
    {"role": "assistant", "content": "Hi."},
]
TEMPLATES = {
    "loop": "{% for m in messages %}\n  {{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}{{ eos_token }}",
    "prompt": "{{ bos_token }}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "loop controls": "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "optional variables": "{% if tools %}tools{% endif %}{% if documents is none %}none{% endif %}{{ undefined }}",
    "date": "{{ strftime_now('%Y') }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
}


def template(directory: Path, source: Any, **config: Any) -> ChatTemplate:
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": source} | config))
    return ChatTemplate.from_directory(directory)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompted", [True, False])
def test_it_renders_as_transformers_does(
    tmp_path: Path, byte_tokenizer: Any, name: str, prompted: bool
) -> None:
    transformers = pytest.importorskip("transformers", reason="Transformers is the oracle")
    tokens = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
    oracle = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer, **tokens)
    expected = oracle.apply_chat_template(
        MESSAGES, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=prompted
    )
    ours = template(tmp_path, TEMPLATES[name], bos_token={"content": "<|bos|>"}, eos_token="<|im_end|>")
    assert ours.render(MESSAGES, add_generation_prompt=prompted) == expected


def test_a_template_file_of_its_own_goes_first(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert template(tmp_path, "from the config").render(MESSAGES) == "from the file"


def test_of_several_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert template(tmp_path, several).render(MESSAGES) == "plain"


@pytest.mark.parametrize("source", [None, [], [{"name": "rag", "template": "x"}], 5])
def test_a_missing_template_says_what_to_do(tmp_path: Path, source: Any) -> None:
    with pytest.raises(InputError, match=r"no chat template.*plain text"):
        template(tmp_path, source)


def test_a_directory_without_tokenizer_config_has_no_template(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no chat template"):
        ChatTemplate.from_directory(tmp_path)


def test_a_template_that_is_not_jinja_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer_config\.json: the chat template is not valid"):
        template(tmp_path, "{% for %}")


def test_a_file_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: cannot be read as JSON"):
        ChatTemplate.from_directory(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_what_a_template_may_not_do_is_one_line(tmp_path: Path, source: str) -> None:
    with pytest.raises(InputError, match="refuses the conversation") as caught:
        template(tmp_path, source).render(MESSAGES)
    assert "\n" not in str(caught.value)
