"""DLRM: bottom MLP, embeddings, pairwise dot interaction, top MLP (Naumov et al., arXiv 1906.00091).

Shapes: B samples, N dense columns, F categorical features, D embedding_dim.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from mtrains.train.config import ModelShape, TrainConfig

__all__ = ["DLRM", "build_dlrm"]


def build_dlrm(config: TrainConfig, embeddings: nn.Module) -> DLRM:
    """Return the configuration's model; its MLPs start from config.seed, whatever drew numbers before."""
    torch.manual_seed(config.seed)
    return DLRM(config.shape, len(config.schema.dense), len(config.schema.features), embeddings)


class DLRM(nn.Module):
    """Logits of samples from dense columns and pooled embeddings.

    embeddings: a module (indices, offsets, per_sample_weights=None) -> float32[B, F * D], feature-major as
    `TieredEmbeddingBagCollection`. The top MLP sees the bottom MLP's output and the dot products of all pairs
    of the F + 1 vectors. Without dense columns there is no bottom MLP and it sees the F embeddings themselves
    and the dot products of their pairs.

    Initial weights of the MLPs are those of facebookresearch/dlrm, dlrm_s_pytorch.py:
    normal with variance 2 / (fan_in + fan_out), biases 1 / fan_out, from torch's generator.
    """

    def __init__(self, shape: ModelShape, num_dense: int, num_features: int, embeddings: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings
        self._num_features = num_features
        self._dim = shape.embedding_dim
        self.mlps = nn.ModuleDict()  # all that is not embeddings
        num_vectors, num_direct = num_features, num_features * shape.embedding_dim
        if num_dense:
            self.mlps["bottom"] = _mlp((num_dense, *shape.bottom_mlp, shape.embedding_dim), last_relu=True)
            num_vectors, num_direct = num_features + 1, shape.embedding_dim
        num_pairs = num_vectors * (num_vectors - 1) // 2
        rows, columns = torch.tril_indices(num_vectors, num_vectors, -1)
        self.register_buffer("_pairs", rows * num_vectors + columns, persistent=False)
        self.mlps["top"] = _mlp((num_direct + num_pairs, *shape.top_mlp, 1), last_relu=False)

    @property
    def device(self) -> torch.device:
        """Where the MLPs are; the embeddings' outputs must be there too."""
        return self.get_buffer("_pairs").device

    def forward(self, dense: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        """Return logits float32[B]. dense: float32[B, N]; indices, offsets: int64, feature-major, on the CPU."""
        embedded: Tensor = self.embeddings(indices, offsets)
        vectors = embedded.view(len(dense), self._num_features, self._dim)
        direct = embedded
        if "bottom" in self.mlps:
            direct = self.mlps["bottom"](dense)
            vectors = torch.cat((direct.unsqueeze(1), vectors), dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        pairs = products.index_select(1, self.get_buffer("_pairs"))
        logits: Tensor = self.mlps["top"](torch.cat((direct, pairs), dim=1))
        return logits.squeeze(1)


def _mlp(widths: tuple[int, ...], *, last_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.normal_(linear.weight, std=math.sqrt(2 / (fan_in + fan_out)))
        nn.init.normal_(linear.bias, std=math.sqrt(1 / fan_out))
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))
