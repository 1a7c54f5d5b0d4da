import torch
from torch import nn

from mtrains.specs import TableSpec
from mtrains.train.config import ModelShape
from mtrains.train.dlrm import DLRM
from mtrains.train.tables import InMemoryTables

SHAPE = ModelShape(embedding_dim=4, bottom_mlp=(8,), top_mlp=(6,))
SPECS = [TableSpec("a", 10, 4), TableSpec("b", 5, 4), TableSpec("c", 7, 4)]
# Two samples, three features; sample 1 has an empty bag of b and two categories of c.
INDICES = torch.tensor([9, 0, 4, 6, 1, 2])
OFFSETS = torch.tensor([0, 1, 2, 3, 3, 4, 6])


def pooled_by_hand(tables):
    a, b, c = (table.weight for table in tables.tables)
    zero = torch.zeros(4)
    return torch.stack([torch.stack([a[9], b[4], c[6]]), torch.stack([a[0], zero, c[1] + c[2]])])


def top_input_of(model):
    seen = []
    model.mlps["top"].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    return seen


def test_in_memory_tables_have_the_layout_of_a_collection():
    tables = InMemoryTables(SPECS)
    torch.testing.assert_close(tables(INDICES, OFFSETS), pooled_by_hand(tables).flatten(1))
    weights = torch.tensor([1.0, 2, 3, 4, 5, 6])
    c = tables.tables[2].weight
    weighted = tables(INDICES, OFFSETS, weights)
    torch.testing.assert_close(weighted[1, 8:], 5 * c[1] + 6 * c[2])


def test_the_interaction_is_the_lower_triangle_of_dot_products():
    tables = InMemoryTables(SPECS)
    model = DLRM(SHAPE, 3, 3, tables)
    seen = top_input_of(model)
    dense = torch.randn(2, 3)
    assert model(dense, INDICES, OFFSETS).shape == (2,)
    bottom = model.mlps["bottom"](dense)
    vectors = torch.cat((bottom[:, None], pooled_by_hand(tables)), 1)
    dots = [(vectors[:, i] * vectors[:, j]).sum(1) for i in range(4) for j in range(i)]
    torch.testing.assert_close(seen[0], torch.cat((bottom, torch.stack(dots, 1)), 1))


def test_without_dense_columns_the_top_mlp_sees_the_embeddings():
    tables = InMemoryTables(SPECS)
    model = DLRM(SHAPE, 0, 3, tables)
    seen = top_input_of(model)
    model(torch.zeros(2, 0), INDICES, OFFSETS)
    assert "bottom" not in model.mlps
    assert seen[0].shape == (2, 12 + 3)
    torch.testing.assert_close(seen[0][:, :12], pooled_by_hand(tables).flatten(1))


def test_one_categorical_column_is_enough():
    model = DLRM(SHAPE, 0, 1, InMemoryTables(SPECS[:1]))
    assert model(torch.zeros(2, 0), INDICES[:2], OFFSETS[:3]).shape == (2,)


def test_every_parameter_takes_part():
    model = DLRM(SHAPE, 3, 3, InMemoryTables(SPECS))
    model(torch.randn(2, 3), INDICES, OFFSETS).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    linears = [module for module in model.mlps.modules() if isinstance(module, nn.Linear)]
    assert [(linear.in_features, linear.out_features) for linear in linears] == [
        (3, 8),
        (8, 4),
        (4 + 6, 6),
        (6, 1),
    ]
