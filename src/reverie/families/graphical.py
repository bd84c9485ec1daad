"""The graphical model of each family: which variables of a datum depend on which, as a factorisation and in words."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from reverie.families.bayes_net import BayesNet, Plate
from reverie.families.factorisation import read

LEVELS = 3  # of a hierarchy, where it is drawn


@dataclass(frozen=True)
class GraphicalModel:
    """How the variables of one datum depend on one another, given its label where it has one.

    model: the factorisation that data are drawn by; words: the same in words; encoder: that of what goes from data to
    latents, where something does; observed: the data, or x_{1:T} where their numbers are variables of their own.  T is the
    number of levels, of steps, or of numbers.
    """

    model: str
    words: str
    encoder: str = ""
    observed: str = "x"

    def graph(self, levels: int = LEVELS) -> BayesNet:
        """Return the model's graph, one of N independent data."""
        graph = BayesNet.from_factorisation(self.model, self.data(levels), T=levels)
        return replace(graph, plates=(Plate("N", frozenset(graph.nodes)),))

    def encoder_graph(self, levels: int = LEVELS) -> BayesNet | None:
        """Return the graph of the encoder, in which the data are given."""
        return BayesNet.from_factorisation(self.encoder, self.data(levels), T=levels) if self.encoder else None

    def data(self, levels: int = LEVELS) -> tuple[str, ...]:
        """Return the nodes that are observed."""
        return read(f"p({self.observed})", {"T": levels})[1][0].variables

    def levels(self, levels: int = LEVELS) -> tuple[str, ...]:
        """Return the nodes of which there are T, numbered from 1 on, the T-th first; or none."""
        if not re.search(r"_T\b|:T\}", self.model):
            return ()
        numbered = [v for v in self.graph(levels).nodes if v != self.observed and v.rpartition("_")[2].isdecimal()]
        return tuple(sorted(numbered, key=lambda v: -int(v.rpartition("_")[2])))


NUMBERS = "x_{1:T}"
ONE_BY_ONE = "p(x_{1:T}) = prod_{t=1}^T p(x_t | x_{1:t-1})"
ANSWER = "p(x_{1:T} | s) = prod_{t=1}^T p(x_t | x_{1:t-1}, s)"

GRAPHICAL: dict[str, GraphicalModel] = {
    "gaussian": GraphicalModel("p(x)", "Draw the datum x from one Gaussian."),
    "mixture": GraphicalModel(
        "p(x, k) = p(k) p(x | k)", "Draw a component k, then x from the Gaussian of that component."
    ),
    "pca": GraphicalModel(
        "p(x, z) = p(z) p(x | z)",
        "Draw a few numbers z, then x around mean + W z, a point of a plane. What x tells of z has a closed form.",
    ),
    "autoencoder": GraphicalModel(
        "p(x, z) = p(z) p(x | z)",
        "A network makes x of a code z, without noise, and another z of x. Codes are drawn from a Gaussian "
        "that has the moments of the data's.",
        "q(z | x)",
    ),
    "denoising-autoencoder": GraphicalModel(
        "p(x, z | x') = p(z | x') p(x | z)",
        "Noise makes x' of x, and networks make x of x' through a code z. A walk round and round draws data.",
        "q(x' | x)",
    ),
    "vae": GraphicalModel(
        "p(x, z) = p(z) p(x | z)",
        "Draw a code z, then x from what the decoder makes of it. The encoder tells which codes x may come from.",
        "q(z | x)",
    ),
    "hvae": GraphicalModel(
        "p(x, z_{1:T}) = p(x | z_{1:T}) prod_{t=1}^T p(z_t | z_{t+1:T})",
        "Draw codes from the top down, each from all above it, and x from all of them. The encoder goes the same way, "
        "with x in view.",
        "q(z_{1:T} | x) = prod_{t=1}^T q(z_t | z_{t+1:T}, x)",
    ),
    "mhvae": GraphicalModel(
        "p(x, z_{1:T}) = p(x | z_1) p(z_T) prod_{t=2}^T p(z_{t-1} | z_t)",
        "Draw codes from the top down, each from the one above alone, and x from the last. The encoder climbs from x.",
        "q(z_{1:T} | x) = q(z_1 | x) prod_{t=2}^T q(z_t | z_{t-1})",
    ),
    "flow": GraphicalModel(
        "p(x, z) = p(z) p(x | z)",
        "Draw noise z as large as the datum, and bring it to x by a map that can be undone, so z is a function of x as well.",
        "q(z | x)",
    ),
    "sinkhorn": GraphicalModel(
        "p(x, z) = p(z) p(x | z)",
        "Draw a code z; a network makes x of it, without noise. It is taught by what it costs to move its data to real ones.",
    ),
    "ar1": GraphicalModel(
        "p(x_{1:T}) = p(x_1) prod_{t=2}^T p(x_t | x_{t-1})",
        "Draw the first moment from the stationary state, then each as so much of the one before, plus noise.",
        observed=NUMBERS,
    ),
    "ar": GraphicalModel(
        "p(x_{1:T}) = p(x_1) p(x_2 | x_1) prod_{t=3}^T p(x_t | x_{t-1}, x_{t-2})",
        "Draw the first moments from the stationary state, then each as a linear map of the last few, here two, plus noise.",
        observed=NUMBERS,
    ),
    "fvsbn": GraphicalModel(
        ONE_BY_ONE, "Draw the numbers of x one after another, each by logistic regression on all before it.", observed=NUMBERS
    ),
    "nade": GraphicalModel(
        ONE_BY_ONE,
        "Draw the numbers of x one after another, each from hidden units that all before it feed, with shared weights.",
        observed=NUMBERS,
    ),
    "rnn": GraphicalModel(
        ONE_BY_ONE, "Draw the numbers of x one after another. A state that each of them changes remembers those before.",
        observed=NUMBERS,
    ),
    "lstm": GraphicalModel(
        ONE_BY_ONE,
        "Draw the numbers of x one after another. Gates decide what of each the state keeps, for how long, and what it tells.",
        observed=NUMBERS,
    ),
    "transformer": GraphicalModel(
        ONE_BY_ONE, "Draw the numbers of x one after another, each by attention to all before it.", observed=NUMBERS
    ),
    "bigram": GraphicalModel(
        "p(x_{1:T}) = p(x_1) prod_{t=2}^T p(x_t | x_{t-1})",
        "Draw the tokens of a text one after another, each by the one before it alone.",
        observed=NUMBERS,
    ),
    "mlp-lm": GraphicalModel(
        "p(x_{1:T}) = p(x_1) p(x_2 | x_1) prod_{t=3}^T p(x_t | x_{t-1}, x_{t-2})",
        "Draw the tokens of a text one after another, each by a network that sees the last few, here two.",
        observed=NUMBERS,
    ),
    "seq2seq": GraphicalModel(
        ANSWER,
        "Read the source s, which is given. Draw the tokens of its target x one after another, each by all before it and by"
        " what attention sees of the source.",
        observed=NUMBERS,
    ),
    "transformer-seq2seq": GraphicalModel(
        ANSWER,
        "Read the source s, which is given. Draw the tokens of its target x one after another, each by attention to all before"
        " it and to the source.",
        observed=NUMBERS,
    ),
    "diffusion": GraphicalModel(
        "p(x_{0:T}) = p(x_T) prod_{t=1}^T p(x_{t-1} | x_t)",
        "Draw noise, then take some of it away in each of T steps. The forward process adds it, without a network.",
        "q(x_{1:T} | x_0) = prod_{t=1}^T q(x_t | x_{t-1})",
        "x_0",
    ),
}  # fmt: skip
