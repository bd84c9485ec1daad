"""Settings of language models: part of the table [family] of config.toml."""

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
MAX_TABLE = 2**13  # tokens of a bigram table


class TextSettings(FamilySettings):
    """tokenizer: trained on the training text; begins: whether the data are several texts."""

    tokenizer: TokenizerTable
    begins: bool = False


class BigramSettings(TextSettings):
    """A bigram table."""

    name: Literal["bigram"] = "bigram"


class FixedContextSettings(TextSettings):
    """context: tokens that the MLP sees; hidden: width of its hidden layer; see `nets.sequence.FixedContext`."""

    name: Literal["mlp-lm"] = "mlp-lm"
    dim: Annotated[int, Field(ge=1, le=8192)] = 64
    context: Annotated[int, Field(ge=1, le=1024)] = 8
    hidden: Annotated[int, Field(ge=1, le=65536)] = 512
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    tied: bool = True


def training_text(data: Dataset) -> TextWindows:
    """Return the text that the data are windows of."""
    if not isinstance(data.x, TextWindows):
        raise UserError(f"a language model needs text, and {data.name} has {data.kind}; give text data, or another --family")
    return data.x


def train_tokenizer(request: PlanRequest, requested: Any) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the requested tokenizer, trained on the training text, and the settings that depend on it."""
    train = training_text(request.train)
    texts = train.texts()
    request.progress("training tokenizer", 0, 1)
    tokenizer = learn_tokenizer(texts, requested or "characters")
    request.progress("training tokenizer", 1, 1)
    return tokenizer, {"tokenizer": TokenizerTable.of(tokenizer).model_dump(), "begins": len(texts) > 1}


def same_tokenizer(table: TokenizerTable, requested: str | Spec | None) -> bool:
    """Return whether a trained tokenizer is the requested one."""
    if requested is None:
        return True
    spec = complete(TOKENIZERS, requested, "tokenizer")
    size = spec.get("size")
    return spec["name"] == table.name and (size is None or table.build().size <= size)


def describe_tokenizer(tokenizer: Tokenizer) -> str:
    """Describe the tokenizer."""
    return f"{tokenizer.size:,} tokens ({format_spec(tokenizer.name)})"
