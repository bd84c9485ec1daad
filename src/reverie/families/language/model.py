"""Language models: tokenized text, an exact likelihood, and sampling token by token after a prompt."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.base.errors import UserError
from reverie.base.noise import Noise
from reverie.data import Dataset
from reverie.data.dataset import evenly_spaced_indices
from reverie.data.text_windows import END_OF_TEXT, text_of
from reverie.diffusion.likelihood.flow import LogProb
from reverie.diffusion.likelihood.normal import mean_and_error
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers import Frame
from reverie.families.language.token_sampling import TokenSampling
from reverie.families.model import Model, SamplingInputs
from reverie.nets.sequence import State
from reverie.text.tokenizer import END, Tokenizer, utf8

NONE = -1  # padding after the last token
METRIC_TEXTS = 64  # windows, at most, for held-out metrics
TOKENS_AT_ONCE = 2**13  # tokens per evaluated batch
CHUNK = 4096  # tokens per call of a recurrent model, which then continues from its state
PIECE_CHARACTERS = 512  # characters of the pieces of text from which a standard error is estimated
MAX_LENGTH = 10**6  # characters of samples and prompts
UNIT = "bits/character"
UNIFORMS_AT_ONCE = 64  # uniform numbers generated at a time, one per token


@dataclass(frozen=True)
class TextCost:
    """Negative log-likelihood of a text in bits per character and per byte, with the standard error over pieces."""

    bits: float
    error: float
    bits_per_byte: float
    nats: float
    tokens: int
    characters: int


class LanguageModel(Model):
    """log p(x) = sum_i log p(x_i | x_1 .. x_{i-1}) of the tokens of a text.

    limit: length of the context in tokens, None for recurrent models; at the end of the context, the model restarts with the
    later half as its past.  begins: whether the data are several texts, so that a sample is one whole text.  User units are
    character codes, see `reverie.data.text_windows`; model units are tokens, padded with NONE.
    """

    def __init__(self, tokenizer: Tokenizer, shape: tuple[int, ...], limit: int | None, begins: bool) -> None:
        super().__init__()
        self.tokenizer, self.shape, self.limit, self.begins = tokenizer, shape, limit, begins

    @abstractmethod
    def logits(self, ids: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return the logits of each next token, (B, n, V); without a state also of the first, (B, n + 1, V).

        ids: (B, n) int64.
        """

    def tokens(self, codes: np.ndarray) -> np.ndarray:
        """Return the tokens of character codes, with END at the end of a text: (n,) int32."""
        ends = np.flatnonzero(codes == END_OF_TEXT)
        if not len(ends):
            return self.tokenizer.encode(text_of(codes))
        parts = [self.tokenizer.encode(text_of(part)) for part in np.split(codes, ends)]
        end = np.array([END], np.int32)
        return np.concatenate([parts[0], *(piece for part in parts[1:] for piece in (end, part))])

    def encode(self, x: Tensor) -> Tensor:
        """Return the tokens of texts, padded with NONE: (B, n) int64.  x: (B, W) character codes."""
        rows = [torch.from_numpy(self.tokens(row)).long() for row in x.cpu().numpy()]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=NONE).to(x.device)

    def decode(self, z: Tensor) -> Tensor:
        """Return the character codes of tokens, padded with END_OF_TEXT: (B, W)."""
        rows = [torch.from_numpy(self._codes(row)) for row in z.cpu().numpy()]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=END_OF_TEXT).to(z.device)

    def _codes(self, ids: np.ndarray) -> np.ndarray:
        parts = np.split(ids[ids != NONE], np.flatnonzero(ids[ids != NONE] == END))
        spelled = [self.tokenizer.decode(part.tolist()).encode("utf-32-le", "surrogatepass") for part in parts]
        end = END_OF_TEXT.to_bytes(4, "little")
        return np.frombuffer(end.join(spelled), np.int32).astype(np.int64)

    def log_tokens(self, ids: Tensor) -> Tensor:
        """Return log p of each token given those before it: (B, n), 0 for NONE.  ids: (B, n), padded with NONE."""
        unpadded = ids.clamp_min(0)
        fits = self.limit is None or ids.shape[1] <= self.limit
        return (self._in_order(unpadded) if fits else self._in_windows(unpadded, self.limit or 1)).where(ids != NONE, 0.0)

    def _in_order(self, ids: Tensor) -> Tensor:
        """Return log p of each token, continuing from the state after every CHUNK tokens."""
        last = ids.shape[1] - 1
        if last < 0:
            return torch.zeros(ids.shape, device=ids.device)
        y, state = self.logits(ids[:, : min(last, CHUNK)], None)
        parts = [_log_of(y, ids[:, : y.shape[1]])]
        for first in range(CHUNK, last, CHUNK):
            y, state = self.logits(ids[:, first : min(first + CHUNK, last)], state)
            parts.append(_log_of(y, ids[:, first + 1 : first + 1 + y.shape[1]]))
        return torch.cat(parts, 1)

    def _in_windows(self, ids: Tensor, limit: int) -> Tensor:
        """Return log p of each token of a text longer than the context, in windows that overlap by half."""
        count, half = len(ids), limit // 2
        parts = [self._in_order(ids[:, :limit])]
        starts = list(range(limit - half, ids.shape[1] - half, limit - half))
        full = [s for s in starts if s + limit <= ids.shape[1]]
        for k in range(0, len(full), step := max(1, TOKENS_AT_ONCE // (limit * count))):
            windows = torch.cat([ids[:, s : s + limit] for s in full[k : k + step]])
            log_p = self._in_order(windows)[:, half:].reshape(-1, count, limit - half)
            parts.append(log_p.transpose(0, 1).reshape(count, -1))
        parts += [self._in_order(ids[:, s:])[:, half:] for s in starts[len(full) :]]
        return torch.cat(parts, 1)

    @torch.no_grad()
    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> LogProb:
        """Return log p of each text, exactly, in nats.  x: (B, W) character codes."""
        parts = []
        for part in x.to(self.device).split(max(1, TOKENS_AT_ONCE // x.shape[1])):
            parts.append(self.log_tokens(self.encode(part)).double().sum(1).cpu())
        nats = torch.cat(parts)
        return LogProb(nats, torch.zeros_like(nats), 1, "token by token", x.shape[1])

    @torch.no_grad()
    def cost(self, texts: Sequence[str]) -> TextCost:
        """Return the negative log-likelihood of texts, each from its beginning to its end, in the given order.

        The error is the standard error over pieces of about PIECE_CHARACTERS, each given all text before it.
        """
        ids = np.concatenate([part for text in texts for part in (np.array([END], np.int32), self.tokenizer.encode(text))])
        ids = ids if self.begins else ids[1:]
        log_p = self.log_tokens(torch.from_numpy(ids).long()[None].to(self.device))[0].double().cpu()
        characters = sum(map(len, texts))
        size = max(1, round(PIECE_CHARACTERS * len(ids) / max(1, characters)))
        pieces = torch.stack([part.sum() for part in log_p.split(size)][: max(1, len(log_p) // size)])
        error = mean_and_error(-pieces / math.log(2) / (characters * size / len(ids)))[1]
        nats = -float(log_p.sum())
        per_byte = nats / math.log(2) / max(1, sum(len(utf8(text)) for text in texts))
        return TextCost(nats / math.log(2) / max(1, characters), error or 0.0, per_byte, nats, len(ids), characters)

    @torch.no_grad()
    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return the negative log-likelihood of held-out windows of text, in bits per character."""
        x, _ = data.batch(evenly_spaced_indices(len(data), METRIC_TEXTS))
        log_prob = self.log_prob(x, None, torch.empty(0))
        return {"held_out": -float(log_prob.nats.mean()) / (log_prob.size * math.log(2)), "unit": UNIT}

    def facts(self) -> dict[str, Any]:
        """Return values for `reverie inspect`."""
        return {**super().facts(), "tokenizer": self.tokenizer.name, "vocabulary": self.tokenizer.size}

    def summary_line(self) -> str:
        """Return the size of the model and of its vocabulary as one line."""
        return f"{super().summary_line()}; {self.tokenizer.size:,} tokens ({self.tokenizer.name})"

    def prompt_tokens(self, prompt: str | None) -> list[int]:
        """Return the tokens before a sample: those of the prompt, after END for data of several texts."""
        if prompt is not None and len(prompt) > MAX_LENGTH:
            raise UserError(f"the prompt has {len(prompt):,} characters, and at most {MAX_LENGTH:,} are allowed; shorten it")
        return [END] * self.begins + [int(k) for k in self.tokenizer.encode(prompt or "")]

    @torch.no_grad()
    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Sample text token by token; a frame has the tokens so far, including the prompt."""
        options = inputs.options
        choice = TokenSampling.of(options)
        length = self.shape[0] if options.get("length") is None else options["length"]
        if not 1 <= length <= MAX_LENGTH:
            raise UserError(f"--length must be between 1 and {MAX_LENGTH:,} characters, got {length:,}")
        past = torch.tensor([self.prompt_tokens(options.get("prompt"))], dtype=torch.int64, device=self.device)
        ids, noise, count = past.expand(len(inputs.seeds), -1), Noise(inputs.seeds), len(inputs.seeds)
        token_lengths = torch.tensor(
            [len(piece.decode("utf-8", "ignore")) for piece in self.tokenizer.pieces], device=self.device
        )
        token_lengths[1:].clamp_(min=1)
        lengths = torch.zeros(count, dtype=torch.int64, device=self.device)
        finished = torch.zeros(count, dtype=torch.bool, device=self.device)
        y, state = self._start(ids)
        for k in itertools.count():
            if k % UNIFORMS_AT_ONCE == 0:
                uniforms = noise.uniform(UNIFORMS_AT_ONCE, self.device)[0]
            token = choice(y, uniforms[:, k % UNIFORMS_AT_ONCE, None]).masked_fill(finished, NONE)
            ids = torch.cat([ids, token[:, None]], 1)
            lengths += token_lengths[token.clamp_min(0)]
            finished = finished | (lengths >= length) | ((token == END) & self.begins)
            done = length if bool(finished.all()) else min(length - 1, int(lengths.min()))
            yield self._frame(ids, done, length)
            if done == length:
                return
            if self.limit is not None and state.length >= self.limit:
                y, state = self._start(ids.clamp_min(0)[:, -(self.limit // 2) :])
            else:
                y, state = self.logits(token.clamp_min(0)[:, None], state)
                y = y[:, -1]

    def _start(self, ids: Tensor) -> tuple[Tensor, State]:
        """Return the logits after a prompt, and the state; only the last half context of longer prompts is used."""
        if self.limit is not None and ids.shape[1] >= self.limit:
            ids = ids[:, -(self.limit // 2) :]
        y, state = self.logits(ids[:, :CHUNK], None)
        for first in range(CHUNK, ids.shape[1], CHUNK):
            y, state = self.logits(ids[:, first : first + CHUNK], state)
        return y[:, -1], state

    def _frame(self, ids: Tensor, done: int, total: int) -> Frame:
        return Frame(done - 1, total, 1 - done / total, ids, Pair(ids, torch.zeros_like(ids[:1]).expand_as(ids)))


def _log_of(y: Tensor, ids: Tensor) -> Tensor:
    """Return log p of tokens by their logits: (B, n).  y: (B, n, V)."""
    return y.float().log_softmax(-1).gather(-1, ids[..., None])[..., 0]
