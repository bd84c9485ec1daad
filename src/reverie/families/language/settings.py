"""What a language model is made of, as part of the table [family] of config.toml."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from reverie.base.errors import UserError
from reverie.base.spec import Spec, complete, format_spec
from reverie.data import Dataset
from reverie.data.text_windows import TextWindows
from reverie.families.model import FamilySettings, PlanRequest
from reverie.text.learn import TOKENIZERS, learn_tokenizer
from reverie.text.tokenizer import Tokenizer
from reverie.text.tokenizer_table import TokenizerTable

Context = Annotated[int, Field(ge=1, le=2**20)]
MOST_TABLE = 2**13  # tokens whose pairs are counted


class TextSettings(FamilySettings):
    """tokenizer: how text becomes tokens, learned from the training text; begins: whether the data are several texts."""

    tokenizer: TokenizerTable
    begins: bool = False


class BigramSettings(TextSettings):
    """A table of pairs."""

    name: Literal["bigram"] = "bigram"


class FixedContextSettings(TextSettings):
    """context: of how many tokens it knows; hidden: units between them and the next; see `nets.sequence.FixedContext`."""

    name: Literal["mlp-lm"] = "mlp-lm"
    dim: Annotated[int, Field(ge=1, le=8192)] = 64
    context: Annotated[int, Field(ge=1, le=1024)] = 8
    hidden: Annotated[int, Field(ge=1, le=65536)] = 512
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    tied: bool = True


def training_text(data: Dataset) -> TextWindows:
    """Return the text that data are windows of."""
    if not isinstance(data.x, TextWindows):
        raise UserError(f"{data.name} holds {data.kind}, and a language model takes text")
    return data.x


def train_tokenizer(request: PlanRequest, requested: Any) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer that is asked for, learned from the training text, and the settings that follow from both."""
    train = training_text(request.train)
    texts = train.texts()
    request.progress("learning tokens", 0, 1)
    tokenizer = learn_tokenizer(texts, requested or "characters")
    request.progress("learning tokens", 1, 1)
    return tokenizer, {"tokenizer": TokenizerTable.of(tokenizer).model_dump(), "begins": len(texts) > 1}


def same_tokenizer(table: TokenizerTable, requested: str | Spec | None) -> bool:
    """Tell whether a tokenizer that was learned is the one that is asked for."""
    if requested is None:
        return True
    asked = complete(TOKENIZERS, requested, "tokenizer")
    size = asked.get("size")
    return asked["name"] == table.name and (size is None or table.build().size <= size)


def describe_tokenizer(tokenizer: Tokenizer) -> str:
    """Say what the tokens are."""
    return f"{tokenizer.size:,} tokens ({format_spec(tokenizer.name)})"
