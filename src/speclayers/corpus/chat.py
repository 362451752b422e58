"""Rendering a conversation as the target expects it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from speclayers.errors import UserError
from speclayers.targets.manifest import PLAIN_FORMAT

Answer = str | Sequence[int]
"""The assistant's words, or the token ids that it generated."""


def render(
    tokenizer: Any, turns: Sequence[str], answers: Sequence[Answer], template_options: Mapping[str, bool | int | str]
) -> list[int]:
    """Return the prompt for the assistant's next turn as token ids.

    Args:
        tokenizer: The target's tokenizer.
        turns: What the user said, one text a turn.
        answers: What the assistant answered to all turns but the last.
        template_options: Extra arguments of the chat template.

    Raises:
        UserError: The chat template refuses the conversation, or nothing is left of it.
    """
    text = render_text(tokenizer, turns, answers, template_options)
    # A chat template writes its own special tokens; the plain format leaves a leading one to the tokenizer.
    ids: list[int] = tokenizer(text, add_special_tokens=tokenizer.chat_template is None).input_ids
    if not ids:
        raise UserError("the tokenizer and its chat template make no token of a conversation; expected at least one")
    return ids


def render_text(
    tokenizer: Any, turns: Sequence[str], answers: Sequence[Answer], template_options: Mapping[str, bool | int | str]
) -> str:
    """Return the prompt for the assistant's next turn as text; arguments as in `render`."""
    if len(answers) != len(turns) - 1:
        raise ValueError(f"{len(turns)} turns need {len(turns) - 1} answers before the next; found {len(answers)}")
    said = [answer if isinstance(answer, str) else decode(tokenizer, answer) for answer in answers]
    if tokenizer.chat_template is None:
        asked = [PLAIN_FORMAT.format(turn=turn) for turn in turns]
        closed = [f"{ask} {answer.strip()}\n" for ask, answer in zip(asked, said, strict=False)]
        return "".join((*closed, asked[-1]))
    messages = [{"role": "user", "content": turns[0]}]
    for answer, turn in zip(said, turns[1:], strict=True):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
    try:
        text: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **template_options
        )
    except TemplateError as error:
        raise UserError(f"the tokenizer's chat template refuses a conversation: {error}") from None
    return text


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return generated ids as text, without special tokens."""
    text: str = tokenizer.decode(list(ids), skip_special_tokens=True)
    return text


def prompt_hash(text: str) -> str:
    """Return the SHA-256 of a rendered prompt."""
    return hashlib.sha256(text.encode()).hexdigest()
