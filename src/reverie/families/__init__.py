"""Model families: each plans, builds, trains and samples its own type of model behind one interface."""

from __future__ import annotations

from reverie.families.autoregressive.family import FVSBNFamily, LSTMFamily, NADEFamily, RNNFamily, TransformerFamily
from reverie.families.closed_form_families import GaussianFamily, MixtureFamily, PCAFamily
from reverie.families.diffusion.family import DiffusionFamily
from reverie.families.flow.family import FlowFamily
from reverie.families.language.family import BigramFamily, FixedContextFamily
from reverie.families.linear_series import AR1Family, ARFamily
from reverie.families.model import FAMILIES
from reverie.families.seq2seq.family import RecurrentPairFamily, TransformerPairFamily
from reverie.families.sinkhorn.family import SinkhornFamily
from reverie.families.vae.family import AutoencoderFamily, DenoisingFamily, HVAEFamily, MHVAEFamily, VAEFamily

FAMILIES.update({
    "diffusion": DiffusionFamily(), "gaussian": GaussianFamily(), "mixture": MixtureFamily(), "pca": PCAFamily(),
    "autoencoder": AutoencoderFamily(), "denoising-autoencoder": DenoisingFamily(), "vae": VAEFamily(),
    "hvae": HVAEFamily(), "mhvae": MHVAEFamily(), "flow": FlowFamily(), "sinkhorn": SinkhornFamily(),
    "fvsbn": FVSBNFamily(), "nade": NADEFamily(), "rnn": RNNFamily(),
    "lstm": LSTMFamily(), "transformer": TransformerFamily(), "ar1": AR1Family(), "ar": ARFamily(),
    "bigram": BigramFamily(), "mlp-lm": FixedContextFamily(),
    "seq2seq": RecurrentPairFamily(), "transformer-seq2seq": TransformerPairFamily(),
})  # fmt: skip

__all__ = ["FAMILIES"]
