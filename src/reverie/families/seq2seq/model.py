"""Sequence-to-sequence models: exact p(target | source), and answers by sampling, greedily or by beam search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from reverie.base.deadline import Deadline
from reverie.base.errors import UserError
from reverie.base.noise import Noise, mix_seed
from reverie.data import Dataset
from reverie.data.dataset import evenly_spaced_indices
from reverie.data.text_pairs import TextPairs
from reverie.data.text_windows import END_OF_TEXT, codes_of, text_of
from reverie.diffusion.likelihood.flow import LogProb
from reverie.diffusion.likelihood.normal import mean_and_error
from reverie.diffusion.pair import Pair
from reverie.diffusion.samplers import Frame
from reverie.families.language.model import NONE
from reverie.families.language.token_sampling import TokenSampling
from reverie.families.model import SamplingInputs, TrainedModel
from reverie.families.seq2seq.search import Candidate, beam_search
from reverie.nets.dropout import seeded_dropout
from reverie.nets.embedding import random_vectors
from reverie.nets.seq2seq import EncoderDecoder, Memory
from reverie.nets.sequence import State
from reverie.text.tokenizer import END, Tokenizer

UNIT = "nats/token"
METRIC_PAIRS = 512  # pairs, at most, for held-out metrics
PAIRS_AT_ONCE = 256  # pairs per evaluated batch
BEGIN_PAIRS = 4096  # training pairs, at most, for the initial bias
MAX_PROMPT = 4096  # characters of a source
MAX_BEAMS = 256
SPARE = 8  # tokens that an answer may have above twice the length of the longer of source and training data


@dataclass(frozen=True)
class Answer:
    """An answer to a source, with log p(text | source) in nats; ended: whether the model ended it."""

    text: str
    log_prob: float
    ended: bool = True


@dataclass(frozen=True)
class PairCost:
    """Negative log-likelihood of targets given their sources, in nats per token, with the standard error over pairs."""

    nats_per_token: float
    error: float
    nats: float
    tokens: int
    pairs: int


class PairModel(TrainedModel):
    """log p(y | x) = sum_t log p(y_t | y_1 .. y_{t-1}, x), with the end of the target as its last token.

    p(y_t = v | ..) = softmax_v(D net(x, start, C y_1, .., C y_{t-1}) + b), with an embedding C v of each token, shared by
    sources and targets.  User units: codes of characters (B, 2, W), see `reverie.data.text_pairs`; model units: tokens
    (B, 2, n), padded with NONE.  examples: number of stored sources of the training data, used if none is given.
    """

    def __init__(self, net: EncoderDecoder, tied: bool, tokenizer: Tokenizer, shape: tuple[int, ...], examples: int) -> None:
        super().__init__()
        self.net, self.tokenizer, self.shape = net, tokenizer, shape
        self.start = random_vectors(1, net.dim)
        self.embed = nn.Embedding(tokenizer.size, net.dim)
        self.head = None if tied else nn.Linear(net.dim, tokenizer.size, bias=False)
        self.bias = nn.Parameter(torch.zeros(tokenizer.size))
        self.examples = nn.Buffer(torch.full((examples, shape[1]), END_OF_TEXT, dtype=torch.int32))
        if not self.embed.weight.is_meta:
            nn.init.normal_(self.embed.weight, std=net.dim**-0.5)
        if self.head is not None:
            nn.init.zeros_(self.head.weight)

    @torch.no_grad()
    def initialize(self, data: Dataset, deadline: Deadline | None = None) -> None:
        """Initialize the bias with the frequency of tokens in targets, and store some sources."""
        z = self.encode(data.batch(evenly_spaced_indices(len(data), BEGIN_PAIRS))[0])[:, 1]
        counts = torch.bincount(z[z != NONE], minlength=self.tokenizer.size) + 1.0
        counts[END] += len(z)
        self.bias.copy_((counts / counts.sum()).log())
        self.examples.copy_(data.batch(evenly_spaced_indices(len(data), len(self.examples)))[0][:, 0])

    def encode(self, x: Tensor) -> Tensor:
        """Return the tokens of sources and targets, padded with NONE: (B, 2, n) int64."""
        rows = x.flatten(0, 1).cpu().numpy()
        lengths = (rows != END_OF_TEXT).sum(1)
        ids = [torch.from_numpy(self.tokenizer.encode(text_of(r[:n]))).long() for r, n in zip(rows, lengths, strict=True)]
        return pad_sequence(ids, batch_first=True, padding_value=NONE).reshape(len(x), 2, -1).to(x.device)

    def decode(self, z: Tensor) -> Tensor:
        """Return the character codes of tokens, padded with END_OF_TEXT: (B, 2, W), W at least that of the data."""
        spelled = [codes_of(self.spelled(row)) for row in z.flatten(0, 1).cpu().numpy()]
        width = max(self.shape[1], *map(len, spelled))
        rows = np.full((len(spelled), width), END_OF_TEXT, np.int64)
        for row, codes in zip(rows, spelled, strict=True):
            row[: len(codes)] = codes
        return torch.from_numpy(rows).reshape(len(z), 2, -1).to(z.device)

    def spelled(self, ids: np.ndarray | Sequence[int]) -> str:
        """Return the text of tokens, without END and NONE."""
        return self.tokenizer.decode(int(k) for k in ids if k > END)

    def read(self, sources: Tensor) -> Memory:
        """Encode sources, each followed by END.  sources: (B, S) tokens, padded with NONE."""
        terminated = functional.pad(sources, (0, 1), value=NONE)
        lengths = (sources != NONE).sum(1)
        terminated[torch.arange(len(terminated), device=terminated.device), lengths] = END
        return self.net.encode(self.embed(terminated.clamp_min(0)), terminated != NONE)

    def inputs(self, targets: Tensor) -> Tensor:
        """Return the start vector and the embeddings of tokens: (B, n + 1, dim).  targets: (B, n), padded with NONE."""
        return torch.cat([self.start.expand(len(targets), 1, -1), self.embed(targets.clamp_min(0))], 1)

    def logits(self, memory: Memory, ids: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return the logits of each next token, (B, n, V); without a state also of the first, (B, n + 1, V)."""
        h, new_state = self.net(memory, self.embed(ids) if state is not None else self.inputs(ids), state)
        weight = self.embed.weight if self.head is None else self.head.weight
        return functional.linear(h, weight, self.bias), new_state

    def log_targets(self, z: Tensor) -> Tensor:
        """Return log p of each target token and of the end, given the source and the tokens before: (B, n + 1).

        0 for padding.  z: (B, 2, n), see `encode`.
        """
        targets = z[:, 1, : max(1, int((z[:, 1] != NONE).sum(1).max()))]
        count = (targets != NONE).sum(1, keepdim=True)
        truth = functional.pad(targets, (0, 1), value=NONE).scatter(1, count, END)
        sources = z[:, 0, : max(1, int((z[:, 0] != NONE).sum(1).max()))]
        y, _ = self.logits(self.read(sources), targets, None)
        loss = functional.cross_entropy(y.flatten(0, 1).float(), truth.flatten(), ignore_index=NONE, reduction="none")
        return -loss.reshape(truth.shape)

    def loss(self, x: Tensor, cond: Tensor | None, seed: int) -> Tensor:
        """Return the negative log-likelihood of each target in nats per token: (B,)."""
        z = self.encode(x)
        with seeded_dropout(self.net, mix_seed(seed, 3)):
            return -self.log_targets(z).sum(1) / ((z[:, 1] != NONE).sum(1) + 1)

    @torch.no_grad()
    def log_prob(self, x: Tensor, cond: Tensor | None, seeds: Tensor) -> LogProb:
        """Return log p(target | source) of each pair, exactly, in nats.  x: (B, 2, W) character codes."""
        parts = [self.log_targets(self.encode(part.to(self.device))).double().sum(1).cpu() for part in x.split(PAIRS_AT_ONCE)]
        nats = torch.cat(parts)
        return LogProb(nats, torch.zeros_like(nats), 1, "token by token", x[0].numel())

    @torch.no_grad()
    def cost(self, x: Tensor) -> PairCost:
        """Return the negative log-likelihood of targets, including their ends.  x: (B, 2, W) character codes."""
        nats, tokens = list[Tensor](), list[Tensor]()
        for part in x.split(PAIRS_AT_ONCE):
            z = self.encode(part.to(self.device))
            nats.append(-self.log_targets(z).double().sum(1).cpu())
            tokens.append(((z[:, 1] != NONE).sum(1) + 1).cpu())
        cost, count = torch.cat(nats), torch.cat(tokens).double()
        per_token = float(cost.sum() / count.sum())
        error = mean_and_error((cost - per_token * count) / count.mean())[1]  # of a ratio, linearised
        return PairCost(per_token, error or 0.0, float(cost.sum()), int(count.sum()), len(x))

    @torch.no_grad()
    def held_out_metrics(self, data: Dataset, seed: int) -> dict[str, Any]:
        """Return the negative log-likelihood of held-out targets in nats per token."""
        return {
            "held_out": self.cost(data.batch(evenly_spaced_indices(len(data), METRIC_PAIRS))[0]).nats_per_token,
            "unit": UNIT,
        }

    def facts(self) -> dict[str, Any]:
        """Return values for `reverie inspect`."""
        return {**super().facts(), "tokenizer": self.tokenizer.name, "vocabulary": self.tokenizer.size}

    def summary_line(self) -> str:
        """Return the size of the model and of its vocabulary as one line."""
        return f"{super().summary_line()}; {self.tokenizer.size:,} tokens ({self.tokenizer.name})"

    def sources(self, codes: Tensor) -> Tensor:
        """Return the tokens of sources, padded with NONE: (B, S).  codes: (B, W), of characters."""
        return self.encode(torch.stack([codes, torch.full_like(codes, END_OF_TEXT)], 1))[:, 0]

    def source_tokens(self, prompt: str | None, seeds: Tensor) -> Tensor:
        """Return the tokens of the sources to answer: the prompt, or else a stored source per seed: (B, S)."""
        if prompt is None:
            u = Noise(seeds, draws=2**30).uniform(1)[0][:, 0]
            chosen = self.examples[(u * len(self.examples)).long().to(self.device)].long()
            return self.sources(chosen)
        if len(prompt) > MAX_PROMPT:
            raise UserError(f"the source has {len(prompt):,} characters, and at most {MAX_PROMPT:,} are allowed; shorten it")
        ids = torch.from_numpy(self.tokenizer.encode(prompt.strip())).long().to(self.device)
        return ids.expand(len(seeds), -1)

    def _limit(self, sources: Tensor, length: int | None) -> int:
        if length is not None and not 1 <= length <= MAX_PROMPT:
            raise UserError(f"--length must be between 1 and {MAX_PROMPT:,} characters, got {length:,}")
        return 2 * max(self.shape[1], sources.shape[1]) + SPARE if length is None else length

    @torch.no_grad()
    def frames(self, inputs: SamplingInputs) -> Iterator[Frame]:
        """Answer token by token, greedily by default; a frame has sources and answers so far.

        The sources: the option `sources`, character codes (B, W), else the prompt, else stored sources.
        """
        options = inputs.options
        choice = TokenSampling.of(options, 0.0)
        sources = options.get("sources")
        sources = self.source_tokens(options.get("prompt"), inputs.seeds) if sources is None else self.sources(sources)
        limit = self._limit(sources, options.get("length"))
        if options.get("beams") is not None:
            yield from self._beam_search(sources, options, limit)
            return
        noise, memory = Noise(inputs.seeds), self.read(sources)
        answers = sources[:, :0]
        finished = torch.zeros(len(sources), dtype=torch.bool, device=self.device)
        token_lengths = torch.tensor(
            [len(piece.decode("utf-8", "ignore")) for piece in self.tokenizer.pieces], device=self.device
        )
        remaining = torch.full((len(sources),), options.get("length") or 2 * MAX_PROMPT, device=self.device)
        y, state = self.logits(memory, answers, None)
        for k in range(limit):
            token = choice(y[:, -1], noise.uniform(1, self.device)[0]).masked_fill(finished, NONE)
            remaining -= token_lengths[token.clamp_min(0)]
            finished = finished | (token == END) | (remaining <= 0)
            token = token.masked_fill(token == END, NONE)
            answers = torch.cat([answers, token[:, None]], 1)
            done = limit if bool(finished.all()) else k + 1
            yield self._frame(sources, answers, done, limit)
            if done == limit:
                return
            y, state = self.logits(memory, token.clamp_min(0)[:, None], state)

    def _beam_search(self, sources: Tensor, options: dict[str, Any] | Any, limit: int) -> Iterator[Frame]:
        """Answer each source by the most likely result of a beam search."""
        if options.get("temperature") is not None or options.get("top_k") is not None or options.get("top_p", 1.0) != 1:
            raise UserError("--beams does not sample; leave --temperature, --top-k and --top-p out, or --beams")
        rows = list[Tensor]()
        for k, source in enumerate(sources):
            best = self.search(source[source != NONE], options["beams"], limit)[0]
            rows.append(torch.tensor(best.tokens, dtype=torch.int64, device=self.device))
            answers = pad_sequence([*rows, *(rows[0][:0] for _ in sources[k + 1 :])], batch_first=True, padding_value=NONE)
            yield self._frame(sources, answers, k + 1, len(sources))

    @torch.no_grad()
    def search(self, source: Tensor, beams: int, limit: int) -> list[Candidate]:
        """Return the candidates of a beam search, the most likely first.  source: (S,) tokens."""
        if not 1 <= beams <= MAX_BEAMS:
            raise UserError(f"--beams must be between 1 and {MAX_BEAMS}, got {beams}")
        memory = self.read(source[None])

        def following(ids: Tensor, state: State | None) -> tuple[Tensor, State]:
            repeated = memory.take(torch.zeros(len(ids), dtype=torch.int64, device=self.device))
            y, new_state = self.logits(repeated, ids.to(self.device), state)
            return y[:, -1].float().log_softmax(-1), new_state

        return beam_search(following, beams, limit)

    def answers(self, source: str, beams: int = 1, length: int | None = None) -> list[Answer]:
        """Return the answers of a beam search, the most likely first."""
        ids = self.source_tokens(source, torch.zeros(1, dtype=torch.int64))[0]
        candidates = self.search(ids, beams, self._limit(ids[None], length))
        return [Answer(self.spelled(candidate.tokens), candidate.log_prob, candidate.ended) for candidate in candidates]

    @torch.no_grad()
    def alignment(self, source: str, target: str | None = None) -> tuple[list[str], list[str], list[Tensor]]:
        """Return the tokens of a source and of a target, or of the greedy answer, and the attention weights between them.

        The weights are a tensor (heads, T, S) per layer; the tokens include the ends.
        """
        ids = self.source_tokens(source, torch.zeros(1, dtype=torch.int64))
        if target is None:
            target_ids = list(self.search(ids[0], 1, self._limit(ids, None))[0].tokens)
        else:
            target_ids = [int(k) for k in self.tokenizer.encode(target)]
        targets = torch.tensor([target_ids], dtype=torch.int64, device=self.device)
        weights = self.net.attention_weights(self.read(ids), self.inputs(targets))
        names = [[self.tokenizer.spelled(int(k)) for k in (*row, END)] for row in (ids[0], target_ids)]
        return names[0], names[1], [layer[0].cpu() for layer in weights]

    def _frame(self, sources: Tensor, answers: Tensor, done: int, total: int) -> Frame:
        width = max(sources.shape[1], answers.shape[1])
        z = torch.stack([functional.pad(t, (0, width - t.shape[1]), value=NONE) for t in (sources, answers)], 1)
        return Frame(done - 1, total, 1 - done / total, z, Pair(z, torch.zeros_like(z[:1]).expand_as(z)))


def pair_codes(pairs: TextPairs) -> Tensor:
    """Return all pairs: (N, 2, W) int64."""
    return pairs.take(torch.arange(len(pairs)))
