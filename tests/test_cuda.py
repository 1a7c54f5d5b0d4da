"""Training on a CUDA device: the same bits run after run and whatever the tiers, and close to the CPU's."""

from __future__ import annotations

import pytest
import torch

import mtrains

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none here"),
]

OPTIMIZERS = (mtrains.optim.SGD, mtrains.optim.RowWiseAdagrad, mtrains.optim.SparseAdam)


def train(optimizer_class, dtype=torch.float32, checkpoints=False, path=None, **memory):
    """Train two tables; return (digest, outputs on the CPU)."""
    random = torch.Generator().manual_seed(2)
    with mtrains.Store(path, seed=3, **memory) as store:
        bags = mtrains.TieredEmbeddingBagCollection(
            [
                mtrains.TableSpec("a", 3000, 16, dtype=dtype),
                mtrains.TableSpec("b", 500, 7, mode="mean", dtype=dtype),
            ],
            store=store,
        )
        optimizer = optimizer_class(bags.parameters(), lr=0.05)
        outputs = []
        for step in range(20):
            indices = torch.cat(
                [torch.randint(3000, (96,), generator=random), torch.randint(500, (96,), generator=random)]
            )
            offsets = torch.arange(0, 193, 3)
            grad = torch.randint(-128, 129, (32, 23), generator=random).to(dtype) / 16
            if store.on_device and step % 2:
                indices, offsets = indices.to(store.device), offsets.to(store.device)
            optimizer.zero_grad()
            out = bags(indices, offsets)
            assert out.device == store.device
            out.backward(grad.to(store.device))
            optimizer.step()
            outputs.append(out.detach().cpu().float())
            if checkpoints and step % 6 == 5:
                store.checkpoint(step, wait=False)
        return store.digest(), torch.stack(outputs)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiers_and_checkpoints_change_no_bit(optimizer, dtype, tmp_path):
    expected = train(optimizer, dtype, dram=0, hbm=mtrains.Hbm("64MiB", device="cuda"))[0]
    for memory in ({"dram": 0}, {"dram": "30KiB"}, {"dram": "20KiB", "scm": "64KiB"}):
        path = tmp_path / "-".join(memory.values()).replace("0", "none") if len(memory) > 1 else None
        hbm = mtrains.Hbm("24KiB", device="cuda")
        assert train(optimizer, dtype, path=path, checkpoints=path is not None, hbm=hbm, **memory)[0] == expected


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_results_are_close_to_those_of_the_cpu(optimizer):
    there = train(optimizer, dram=0, hbm=mtrains.Hbm("64MiB", device="cuda"))[1]
    here = train(optimizer, dram="64MiB")[1]
    torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-6)


def test_weights_of_samples_pooling_by_maximum_and_streams_of_the_caller():
    with mtrains.Store(seed=3, dram="20KiB", hbm=mtrains.Hbm("8KiB", device="cuda")) as store:
        device = store.device
        bag = mtrains.TieredEmbeddingBag(500, 8, mode="sum", store=store, name="sum")
        largest = mtrains.TieredEmbeddingBag(500, 8, mode="max", store=store, name="max")
        dense, dense_largest = bag.to_dense().to(device), largest.to_dense().to(device)
        input = torch.arange(300, device=device).view(60, 5)
        weights = torch.rand(60, 5, device=device, requires_grad=True)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            out = bag(input, per_sample_weights=weights) + largest(input)
            out.sum().backward()
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.testing.assert_close(out, dense(input, per_sample_weights=weights) + dense_largest(input))
        expected = dense.weight[input].sum(2)
        torch.testing.assert_close(weights.grad, expected)
