"""Memory in torch's own records: buckets of DDP, groups of FSDP2, autocast's cache.

The expected figures are computed.

There is one process. For DDP it is a gloo group of one. For FSDP2 it is rank 0 of four simulated ranks, whose buffers
have the sizes of four real ranks.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import memwatch
from memwatch.record import torch_records
from memwatch.report.facts import saved_for_backward

WIDTH = 72  # no other test has parameters of this size


@contextlib.contextmanager
def group(backend, world):
    """Be a rank of a process group, and of none afterwards."""
    store = FakeStore() if backend == "fake" else dist.HashStore()
    dist.init_process_group(backend, store=store, rank=0, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()
        gc.collect()


@pytest.fixture
def alone():
    """A gloo group of one process."""
    with group("gloo", 1):
        yield


@pytest.fixture
def rank_of_four():
    """Rank 0 of four, the others imagined."""
    with group("fake", 4):
        yield


def net(layers=3):
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)])


LAYER_BYTES = WIDTH * WIDTH * 4


def train(model, steps=1):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def of_category(prof, category):
    rows = prof.storages
    return rows[(rows["category"] == category) & rows["counted"] & (rows["nbytes"] > 64)]


@pytest.fixture
def left_over():
    """Return the sizes of the parameters that other tests of this process keep: every profile counts them."""
    with memwatch.profile() as prof:
        torch.ones(1)
    return Counter(prof.storages.query("counted and category == 'parameter'")["nbytes"].tolist())


def made_here(sizes, left_over):
    """Return the sizes without those from before the test."""
    return sorted((Counter(sizes) - left_over).elements())


def test_buckets_of_ddp_are_communication(alone):
    """The reducer's bucket and its replacement are reported with their owner and exact size."""
    with memwatch.profile() as prof:
        train(DistributedDataParallel(net()), 3)
    buckets = of_category(prof, "communication")
    buckets = buckets[buckets["name"].str.startswith("bucket")]
    assert buckets["nbytes"].tolist() == [3 * LAYER_BYTES] * 2
    assert set(buckets["name"]) == {"bucket 0 of DistributedDataParallel(Sequential)"}
    held = prof.at_peak[prof.at_peak["name"] == "bucket 0 of DistributedDataParallel(Sequential)"]
    assert set(held["holder"]) == set(held["name"])
    assert set(held["holder_kind"]) == {"communication"}
    assert set(of_category(prof, "gradient")["nbytes"]) == {LAYER_BYTES}


def test_what_a_process_group_still_has_is_no_bucket():
    """Before the buckets are made anew their sizes are broadcast, and the group's thread may free these a bit later."""
    assert torch_records._last_with(30, [(4, 8), (5, 16), (6, 10), (7, 20)]) == [(6, 10), (7, 20)]
    assert torch_records._last_with(30, [(6, 10), (7, 20)]) == [(6, 10), (7, 20)]
    assert torch_records._last_with(0, [(4, 8), (5, 16)]) == [(4, 8), (5, 16)]  # the logger said nothing


def test_many_buckets_are_counted(alone):
    """Each bucket of a reducer has its number, and its size equals the logger's."""
    with memwatch.profile() as prof:
        model = DistributedDataParallel(
            net(), bucket_cap_mb=LAYER_BYTES / (1 << 20), find_unused_parameters=True
        )
        sizes = [int(size) for size in model._get_ddp_logging_data()["bucket_sizes"].split(",")]
    rows = of_category(prof, "communication")
    rows = rows[rows["name"].str.startswith("bucket")]
    assert len(sizes) > 1
    assert rows["nbytes"].tolist() == sizes
    assert rows["name"].str.extract(r"bucket (\d+)")[0].astype(int).tolist() == list(range(len(sizes)))


def test_a_bucket_that_gradients_are_views_of_is_theirs_and_held_by_the_reducer(alone):
    """With gradient_as_bucket_view the bucket's bytes are gradients; the reducer keeps them, also without `.grad`."""
    with memwatch.profile() as prof:
        train(DistributedDataParallel(net(), gradient_as_bucket_view=True), 3)
    rows = of_category(prof, "gradient")
    assert set(rows["nbytes"]) == {3 * LAYER_BYTES}
    assert set(rows["rule"]) == {"it was the .grad of a parameter"}
    # not at the peak: it may be in the op that makes the bucket
    last = prof.ops[prof.ops["phase"] == "backward"].iloc[-1]
    held = prof.held_at(int(prof.timeline["time_ns"].searchsorted(last["start_ns"])))
    assert set(held.loc[held["category"] == "gradient", "holder"]) == {
        "bucket 0 of DistributedDataParallel(Sequential)"
    }
    assert not [finding for finding in prof.findings if finding.kind == "buckets"]


def test_buckets_made_before_the_block_are_known_by_the_collective(alone):
    """The reducer was made before the block. A collective that works on its bucket in backward reveals it."""
    model = DistributedDataParallel(net())
    with memwatch.profile() as prof:
        train(model)
    rows = prof.storages[prof.storages["category"] == "communication"]
    assert rows["rule"].tolist() == ["a collective works on it in backward"]
    assert not rows["counted"].any()  # it was there before, and no object of Python's shows it


def with_a_hook(model):
    ddp_model = DistributedDataParallel(model)
    ddp_model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return ddp_model


def test_a_bucket_that_a_hook_compresses_is_communication(alone):
    """The collective works on copies of half the size; the hook was given the bucket, however old that is."""
    old = with_a_hook(net())
    train(old)  # its buckets are made anew in the second forward
    train(old)
    with memwatch.profile() as prof:
        train(old, 2)
    rows = prof.storages[prof.storages["name"] == "bucket 0 of DistributedDataParallel"]
    assert rows["nbytes"].tolist() == [3 * LAYER_BYTES]
    assert rows["category"].tolist() == ["communication"]
    # A thread of gloo may release the copy of the step before the block only inside the block.
    halves = prof.storages[prof.storages["tensor"] == f"float16[{3 * WIDTH * WIDTH}]"].query(
        "origin != 'baseline'"
    )
    assert len(halves) == 2
    assert set(halves["category"]) == {"communication"}
    with memwatch.profile() as prof:
        train(with_a_hook(net()), 3)
    names = prof.storages.query("category == 'communication'")["name"]
    assert set(names[names.str.startswith("bucket")]) == {"bucket 0 of DistributedDataParallel(Sequential)"}


def shard(model, **options):
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def test_whole_parameters_of_fsdp2_and_their_buffers(left_over, rank_of_four):
    """Parameters are a fourth, whole ones and buffers all of it; each has its name, and the shares add up."""
    model = shard(net())
    with memwatch.profile() as prof:
        train(model)
    parameters = of_category(prof, "parameter")
    assert made_here(parameters["nbytes"], left_over) == [LAYER_BYTES // 4] * 3
    whole = of_category(prof, "unsharded parameter")
    assert set(whole["nbytes"]) == {LAYER_BYTES}
    assert set(whole["name"]) == {f"all-gathered `{layer}.weight`" for layer in range(3)}
    assert set(whole["module"]) == {"0", "1", "2"}
    buffers = of_category(prof, "communication")
    assert set(buffers["nbytes"]) == {LAYER_BYTES}
    expected = {
        f"{kind} of `{layer}`" for kind in ("all-gather buffer", "reduce-scatter input") for layer in range(3)
    }
    assert set(buffers["name"]) == expected
    gradients = of_category(prof, "gradient")
    assert set(gradients["nbytes"]) == {LAYER_BYTES, LAYER_BYTES // 4}
    assert set(gradients["name"]) == {f"`{layer}.weight` .grad" for layer in range(3)}
    seen = prof.at_peak.groupby("category")["nbytes"].sum()
    assert seen["unsharded parameter"] % LAYER_BYTES == 0


def test_low_precision_copies_of_shards_are_communication(rank_of_four):
    """With a policy of mixed precision FSDP2 gathers copies of its shards, to communicate by its books."""
    model = shard(
        net(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    )
    with memwatch.profile() as prof:
        train(model)
    copies = prof.storages[prof.storages["tensor"] == f"bfloat16[{WIDTH * WIDTH // 4}]"]
    assert set(copies["name"]) == {f"all-gather input of `{layer}`" for layer in range(3)}
    assert set(copies["category"]) == {"communication"}
    reduced = prof.storages[prof.storages["tensor"] == f"float32[{WIDTH * WIDTH}]"]
    assert set(reduced["category"]) == {"communication"}


def after_each_op(prof):
    """Yield the bytes of tensors by category after each op, which is when FSDPMemTracker looks."""
    rows = prof.storages[prof.storages["counted"] & ~prof.storages["category"].isin(["workspace", "unknown"])]
    times = prof.timeline["time_ns"].to_numpy()
    death = rows["death_event"].where(rows["death_event"] >= 0, len(times))
    for end_ns in (prof.ops["start_ns"] + prof.ops["duration_ns"]).tolist():
        event = times.searchsorted(end_ns, side="right") - 1
        alive = rows[(rows["birth_event"] <= event) & (event < death)]
        yield alive.groupby("category")["nbytes"].sum().to_dict()


def test_categories_have_the_bytes_of_fsdp_mem_tracker(left_over, rank_of_four):
    """At the highest op both tools have the same bytes. The tracker calls memory Temp until it names it."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    model = shard(net())
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    given = torch.ones(32, WIDTH)

    def step():
        model(given).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with memwatch.profile() as prof:
        step()
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs((given,))
    with tracker:
        step()
    rows = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    theirs = {str(getattr(row, "value", row)): nbytes for row, nbytes in rows.items()}
    ours = max(after_each_op(prof), key=lambda found: sum(found.values()))
    ours["parameter"] -= sum(left_over.elements())
    assert ours["parameter"] == theirs["Sharded Param"] == 3 * LAYER_BYTES // 4
    assert ours["optimizer state"] == theirs["OptState"]
    assert ours["unsharded parameter"] == theirs["Unsharded Param"]
    named_late = ("Sharded Grad", "Unsharded Grad", "All Gather", "Reduce Scatter", "Activation", "Temp")
    of_a_step = ("gradient", "communication", "activation", "temporary")
    assert sum(ours.get(category, 0) for category in of_a_step) == sum(theirs[row] for row in named_late)


def test_resharded_parameters_take_no_bytes(rank_of_four):
    """After forward without grad every whole parameter is given back: nothing of it lives at the block's end."""
    model = shard(net())
    with memwatch.profile() as prof, torch.no_grad():
        model(torch.ones(2, WIDTH))
        torch.ones(1)
    live = prof.live_at(len(prof.timeline) - 1)
    assert live[live["category"] == "unsharded parameter"]["nbytes"].sum() == 0
    whole = of_category(prof, "unsharded parameter")
    assert len(whole) == 3
    assert (whole["death_event"] > 0).all()


def test_a_model_sharded_in_the_block_has_names_for_its_shards(rank_of_four):
    """Shards that no optimizer has seen are parameters by FSDP2's books, with the names that the model gives them."""
    model = net()
    with memwatch.profile() as prof, torch.no_grad():
        shard(model)(torch.ones(2, WIDTH))
    shards = of_category(prof, "parameter")
    shards = shards[shards["nbytes"] == LAYER_BYTES // 4]
    assert sorted(shards["name"]) == ["0.weight", "1.weight", "2.weight"]


def test_flat_parameters_that_are_gathered(left_over, rank_of_four):
    """FullyShardedDataParallel's whole flat parameter has the name of its shard, and goes when it is resharded."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    options = {"device_id": torch.device("cpu")}
    model = FullyShardedDataParallel(
        nn.Sequential(*[FullyShardedDataParallel(layer, **options) for layer in net()]), **options
    )
    with memwatch.profile() as prof:
        train(model)
    whole = of_category(prof, "unsharded parameter")
    assert set(whole["nbytes"]) == {LAYER_BYTES}
    shards = of_category(prof, "parameter")
    assert made_here(shards["nbytes"], left_over) == [LAYER_BYTES // 4] * 3
    assert set(whole["name"]) <= {f"all-gathered `{name}`" for name in shards["name"]}
    assert len(set(whole["name"])) == 3
    assert set(of_category(prof, "communication")["nbytes"]) == {LAYER_BYTES}


def test_what_a_collective_makes_is_communication(rank_of_four):
    """The op of a functional collective reveals its result."""
    from torch.distributed import _functional_collectives as functional

    with memwatch.profile() as prof:
        reduced = functional.all_reduce(torch.ones(4 * WIDTH), "sum", dist.group.WORLD).wait()
    given, made = prof.storages[prof.storages["nbytes"] == reduced.nbytes].itertuples()
    assert (made.category, made.rule) == ("communication", "a collective made it")
    assert given.category == "temporary"


def cast_bytes(cache, **options):
    model = net()
    with (
        memwatch.profile() as prof,
        torch.autocast("cpu", torch.bfloat16, cache_enabled=cache),
        torch.no_grad(),
    ):
        model(torch.ones(2, WIDTH))
    return prof


def test_weights_in_the_cache_of_autocast_are_held_by_it():
    """A copy that dies when the region ends was in the cache, and the report names its weight.

    Without a cache, it does not name the weight.
    """
    prof = cast_bytes(cache=True)
    held = prof.at_peak[prof.at_peak["holder_kind"] == "autocast cache"]
    assert held["nbytes"].tolist() == [LAYER_BYTES // 2] * 3
    for layer in range(3):
        assert held["holder"].str.contains(f"`{layer}.weight`").sum() == 1
    assert not (cast_bytes(cache=False).at_peak["holder_kind"] == "autocast cache").any()


def test_a_block_without_distributed_training_changes_nothing_of_it():
    """The functions that are replaced while a block is open are torch's own again afterwards."""
    before = dict(vars(DistributedDataParallel)), dict(vars(dist.Reducer)), torch.autocast.__exit__
    with memwatch.profile():
        assert dict(vars(DistributedDataParallel)) != before[0]
    assert (dict(vars(DistributedDataParallel)), dict(vars(dist.Reducer)), torch.autocast.__exit__) == before


def test_a_reducer_whose_logger_says_nothing_has_memory_and_no_named_part(alone, monkeypatch):
    """A storage of the reducer can be named as a bucket only if the sizes of the buckets are known."""
    monkeypatch.setattr(torch_records, "bucket_sizes", lambda model: [])
    with memwatch.profile() as prof:
        model = DistributedDataParallel(net(), find_unused_parameters=True)
    made = of_category(prof, "communication")
    made = made[made["name"] != "flat copy for a broadcast of many tensors"]
    made = made[made["rule"] != "a collective or a receive wrote into it"]  # it compares the ranks' shapes
    assert set(made["name"]) == {"memory of the reducer of DistributedDataParallel(Sequential)"}
    assert made["rule"].str.startswith("inferred: ").all()
    assert model is not None


def test_whole_parameters_are_not_there_only_for_backward(rank_of_four):
    """FSDP2 keeps whole parameters from forward to backward.

    They are weights, so the share of saved tensors omits them.
    """
    model = shard(net(), reshard_after_forward=False)
    given = torch.ones(1, WIDTH)
    with memwatch.profile() as prof:
        model(given).sum().backward()
    saved = saved_for_backward(prof)
    assert saved.nbytes > LAYER_BYTES  # backward reads weights
    assert saved.nbytes - saved.held_anyway_bytes < LAYER_BYTES


@pytest.mark.parametrize("is_older", [False, True])
def test_python_lets_go_of_a_backend_after_the_reducer(is_older):
    """The reducer would hold Python's lock while it waits for a thread that needs the lock to free a watched bucket."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(net()) if is_older else None
    with memwatch.profile() as prof:
        model = model or DistributedDataParallel(net())
        train(model, 2)
        backend = weakref.ref(dist.group.WORLD._get_backend(torch.device("cpu")))
        dist.destroy_process_group()
        gc.collect()
        is_kept = backend() is not None
        del model
        gc.collect()
        is_let_go = backend() is None
    assert (is_kept, is_let_go) == (True, True)
    assert [text for kind, text in prof.notes if kind != "threads"] == []  # other tests' may run
