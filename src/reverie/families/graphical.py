"""The graphical model of each family: the dependencies between variables of a datum, as a factorisation and in words."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from reverie.families.bayes_net import BayesNet, Plate
from reverie.families.factorisation import read

LEVELS = 3  # of a hierarchy, in figures


@dataclass(frozen=True)
class GraphicalModel:
    """The dependencies between the variables of one datum, given its label if it has one.

    model: the factorisation of the generative model; words: the same in words; encoder: the factorisation of the encoder, if
    there is one; observed: the data, or x_{1:T} where each value is a variable.  T is the number of levels, steps or values.
    """

    model: str
    words: str
    encoder: str = ""
    observed: str = "x"

    def graph(self, levels: int = LEVELS) -> BayesNet:
        """Return the model's graph, with a plate of N independent data."""
        graph = BayesNet.from_factorisation(self.model, self.data(levels), T=levels)
        return replace(graph, plates=(Plate("N", frozenset(graph.nodes)),))

    def encoder_graph(self, levels: int = LEVELS) -> BayesNet | None:
        """Return the graph of the encoder, in which the data are given."""
        return BayesNet.from_factorisation(self.encoder, self.data(levels), T=levels) if self.encoder else None

    def data(self, levels: int = LEVELS) -> tuple[str, ...]:
        """Return the nodes that are observed."""
        return read(f"p({self.observed})", {"T": levels})[1][0].variables

    def levels(self, levels: int = LEVELS) -> tuple[str, ...]:
        """Return the T numbered nodes, the T-th first; empty for models without such nodes."""
        if not re.search(r"_T\b|:T\}", self.model):
            return ()
        numbered = [v for v in self.graph(levels).nodes if v != self.observed and v.rpartition("_")[2].isdecimal()]
        return tuple(sorted(numbered, key=lambda v: -int(v.rpartition("_")[2])))


VALUES = "x_{1:T}"
CHAIN_RULE = "p(x_{1:T}) = prod_{t=1}^T p(x_t | x_{1:t-1})"
CONDITIONAL_CHAIN_RULE = "p(x_{1:T} | s) = prod_{t=1}^T p(x_t | x_{1:t-1}, s)"

GRAPHICAL: dict[str, GraphicalModel] = {
    "gaussian": GraphicalModel("p(x)", "Sample the datum x from one Gaussian."),
    "mixture": GraphicalModel(
        "p(x, k) = p(k) p(x | k)", "Sample a component k, then x from its Gaussian."
    ),
    "pca": GraphicalModel(
        "p(x, z) = p(z) p(x | z)",
        "Sample a latent vector z, then x around mean + W z. The posterior of z given x has a closed form.",
    ),
    "autoencoder": GraphicalModel(
        "p(x, z) = p(z) p(x | z)",
        "The decoder maps a code z to x without noise, the encoder maps x to z. Codes are sampled from a Gaussian "
        "with the moments of the data's codes.",
        "q(z | x)",
    ),
    "denoising-autoencoder": GraphicalModel(
        "p(x, z | x') = p(z | x') p(x | z)",
        "Noise turns x into x', and the network reconstructs x through a code z. A Markov chain of both samples data.",
        "q(x' | x)",
    ),
    "vae": GraphicalModel(
        "p(x, z) = p(z) p(x | z)",
        "Sample a code z, then x from the decoder's distribution. The encoder approximates the posterior of z.",
        "q(z | x)",
    ),
    "hvae": GraphicalModel(
        "p(x, z_{1:T}) = p(x | z_{1:T}) prod_{t=1}^T p(z_t | z_{t+1:T})",
        "Sample latents from the top down, each given all above it, and x given all of them. The encoder has the same order "
        "and also sees x.",
        "q(z_{1:T} | x) = prod_{t=1}^T q(z_t | z_{t+1:T}, x)",
    ),
    "mhvae": GraphicalModel(
        "p(x, z_{1:T}) = p(x | z_1) p(z_T) prod_{t=2}^T p(z_{t-1} | z_t)",
        "Sample latents from the top down, each given the one above, and x given the last. The encoder ascends from x.",
        "q(z_{1:T} | x) = q(z_1 | x) prod_{t=2}^T q(z_t | z_{t-1})",
    ),
    "flow": GraphicalModel(
        "p(x, z) = p(z) p(x | z)",
        "Sample noise z of the datum's size, and map it to x by an invertible function, so that z is also a function of x.",
        "q(z | x)",
    ),
    "sinkhorn": GraphicalModel(
        "p(x, z) = p(z) p(x | z)",
        "Sample a code z; a network maps it to x without noise. It is trained by the transport cost to the data.",
    ),
    "ar1": GraphicalModel(
        "p(x_{1:T}) = p(x_1) prod_{t=2}^T p(x_t | x_{t-1})",
        "Sample the first value from the stationary distribution, then each as a multiple of the one before plus noise.",
        observed=VALUES,
    ),
    "ar": GraphicalModel(
        "p(x_{1:T}) = p(x_1) p(x_2 | x_1) prod_{t=3}^T p(x_t | x_{t-1}, x_{t-2})",
        "Sample the first values from the stationary distribution, then each as a linear map of the last two, plus noise.",
        observed=VALUES,
    ),
    "fvsbn": GraphicalModel(
        CHAIN_RULE, "Sample the values of x in order, each by logistic regression on all before it.", observed=VALUES
    ),
    "nade": GraphicalModel(
        CHAIN_RULE,
        "Sample the values of x in order, each by a hidden layer of all before it, with shared weights.",
        observed=VALUES,
    ),
    "rnn": GraphicalModel(
        CHAIN_RULE, "Sample the values of x in order, each given a recurrent state of all before it.",
        observed=VALUES,
    ),
    "lstm": GraphicalModel(
        CHAIN_RULE,
        "Sample the values of x in order, each given a recurrent state of all before it; gates control what the state keeps.",
        observed=VALUES,
    ),
    "transformer": GraphicalModel(
        CHAIN_RULE, "Sample the values of x in order, each by attention to all before it.", observed=VALUES
    ),
    "bigram": GraphicalModel(
        "p(x_{1:T}) = p(x_1) prod_{t=2}^T p(x_t | x_{t-1})",
        "Sample the tokens of a text in order, each given the one before it.",
        observed=VALUES,
    ),
    "mlp-lm": GraphicalModel(
        "p(x_{1:T}) = p(x_1) p(x_2 | x_1) prod_{t=3}^T p(x_t | x_{t-1}, x_{t-2})",
        "Sample the tokens of a text in order, each by an MLP of the last few, here two.",
        observed=VALUES,
    ),
    "seq2seq": GraphicalModel(
        CONDITIONAL_CHAIN_RULE,
        "Encode the given source s. Sample the tokens of the target x in order, each given all before it and attention to the"
        " source.",
        observed=VALUES,
    ),
    "transformer-seq2seq": GraphicalModel(
        CONDITIONAL_CHAIN_RULE,
        "Encode the given source s. Sample the tokens of the target x in order, each by attention to all before it and to the"
        " source.",
        observed=VALUES,
    ),
    "diffusion": GraphicalModel(
        "p(x_{0:T}) = p(x_T) prod_{t=1}^T p(x_{t-1} | x_t)",
        "Sample noise, then remove some of it in each of T steps. The forward process adds it without a network.",
        "q(x_{1:T} | x_0) = prod_{t=1}^T q(x_t | x_{t-1})",
        "x_0",
    ),
}  # fmt: skip
