"""An estimated program takes the branches of a real run: its tensors look plain, and small values are known."""

from __future__ import annotations

import gc
import sys
import textwrap
import types

import pytest
import torch
from torch import nn
from torch._subclasses import fake_tensor

import memwatch
from memwatch.estimate.program import estimate_program

BRANCHES = """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    import torch._subclasses.fake_tensor, torch._guards
    x = torch.ones(10)
    assert not isinstance(x, FakeTensor)
    assert not isinstance(x, (int, torch._subclasses.FakeTensor))
    assert not isinstance(x, getattr(torch, "_subclasses").FakeTensor)
    assert type(x) is not FakeTensor
    assert not torch._subclasses.fake_tensor.is_fake(x)
    assert torch._guards.detect_fake_mode([x]) is None
    assert not torch.compiler.is_compiling() and not torch.jit.is_tracing()
"""
VALUES = """
    import torch
    ids = torch.randint(0, 9, (2, 5))
    mask = torch.ones_like(ids)
    {change}
    if mask.to(torch.bool).all():
        kept = torch.ones(1000)
    positions = torch.arange(5).expand(2, -1)
    assert (positions.diff(dim=-1) == 1).all() and positions[1, 3].item() == 3
    view = positions.clone()
    view[0, 2:] = 7
    assert view.tolist() == [[0, 1, 7, 7, 7], [0, 1, 2, 3, 4]]
    assert (view == 7).nonzero().tolist() == [[0, 2], [0, 3], [0, 4]]
    rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
    assert rates == [0.0, 0.5, 1.0]
"""


COPIES = """
    import copy
    import torch
    from torch import nn
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    teacher = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x = torch.randn(8, 4)
        (model(x) - teacher(x).detach()).square().mean().backward()
        optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    number = torch.tensor(5)
    assert copy.deepcopy(number).item() == 5
    assert copy.deepcopy([number, number])[1] is not number
"""
COMPILED = """
    import torch
    from torch import nn
    @torch.compile(fullgraph=True)
    def double(x):
        return x * 2
    model = nn.Linear(4, 4)
    model.compile()
    torch.compile(nn.Linear(4, 4))(double(model(torch.randn(2, 4)))).sum().backward()
"""


GENERATES = """
    import torch
    from torch import nn
    embed, head = nn.Embedding(10, 8), nn.Linear(8, 10)
    tokens, unfinished = torch.zeros(2, 1, dtype=torch.long), torch.ones(2, dtype=torch.long)
    is_over = False
    while not is_over:
        assert tokens.shape[1] < 6
        logits = head(embed(tokens))[:, -1]
        tokens = torch.cat([tokens, logits.argmax(1, keepdim=True)], 1)
        ends = torch.isin(tokens[:, -1], torch.tensor([3]))
        is_long = torch.full((2,), tokens.shape[1] >= 6)
        unfinished = unfinished & ~(ends | is_long)
        torch.logical_or(ends, is_long, out=torch.empty(2, dtype=torch.bool))
        is_over = unfinished.max() == 0
    assert tokens.shape[1] == 6
"""


def estimate(source):
    """Return the estimate of a program."""
    gc.collect()  # fake tensors of an earlier program would be there at entry
    code = compile(textwrap.dedent(source), "train.py", "exec")
    return estimate_program(lambda: lambda: exec(code, {"__name__": "__main__"}))


def estimated_as_in_a_real_run(train):
    """Run a program, estimate it, and check that both have the same peak; return the estimate."""
    gc.collect()
    with memwatch.profile(allocator=False, holders=False) as prof:
        train()
    gc.collect()
    found = estimate_program(lambda: train, steps=1)
    assert found.tensor_bytes == prof.peak_bytes
    return found


def test_a_check_for_fake_tensors_answers_as_in_a_real_run():
    assert estimate(BRANCHES).remarks == ()


def test_modules_and_states_are_copied_as_in_a_real_run():
    """A copy belongs to the same mode: ops take the model's tensors and those of its copy."""
    assert estimate(COPIES).remarks == ()


def test_compiled_functions_run_eagerly_and_the_estimate_says_so():
    (remark,) = estimate(COMPILED).remarks
    assert remark.startswith("torch.compile compiled nothing")
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_a_name_that_was_imported_before_gives_the_same_answer_and_is_restored():
    library = types.ModuleType("a_library")
    library.FakeTensor, library.is_fake = fake_tensor.FakeTensor, fake_tensor.is_fake
    sys.modules["a_library"] = library
    try:
        estimate("""
            import torch, a_library
            assert not isinstance(torch.ones(1), a_library.FakeTensor) and not a_library.is_fake(torch.ones(1))
        """)
    finally:
        del sys.modules["a_library"]
    assert library.FakeTensor is fake_tensor.FakeTensor
    assert library.is_fake is fake_tensor.is_fake


def test_a_fake_tensor_of_the_program_s_own_is_still_fake():
    estimate("""
        import torch
        from torch._subclasses import FakeTensor, FakeTensorMode
        with FakeTensorMode():
            own = torch.ones(3)
        assert isinstance(own, FakeTensor) and not isinstance(torch.ones(3), FakeTensor)
    """)


def test_a_module_that_the_program_imports_is_restored(tmp_path, monkeypatch):
    (tmp_path / "of_the_program.py").write_text("from torch._subclasses import FakeTensor")
    monkeypatch.syspath_prepend(tmp_path)
    estimate("import of_the_program")
    assert sys.modules.pop("of_the_program").FakeTensor is fake_tensor.FakeTensor


def test_a_program_that_finds_the_mode_is_named_with_its_line():
    """The mode of an estimate cannot be hidden. A program that asks nothing gets no remark."""
    found = estimate("""
        import torch
        from torch.utils import _python_dispatch
        if _python_dispatch._get_current_dispatch_mode() is not None:
            x = torch.ones(3)
    """)
    assert [remark.partition(" ")[0] for remark in found.remarks] == ["train.py:4"]
    assert estimate("import torch; x = torch.ones(3)").remarks == ()


@pytest.mark.parametrize(("change", "has_branch"), [("", True), ("mask[1, 3:] = 0", False)])
def test_values_that_follow_from_the_program_choose_its_branches(change, has_branch):
    found = estimate(VALUES.format(change=change))
    assert found.reads == ()
    assert (found.tensor_bytes >= 4000) == has_branch


def test_a_loop_ends_where_each_value_of_an_unknown_tensor_would_end_it():
    estimate(GENERATES)


@pytest.mark.parametrize(
    "value",
    [
        "torch.rand(3)",
        "torch.empty(3).abs_()",
        "torch.ones(3).random_()",
        "torch.ones(3) * torch.rand(3)",
        "torch.ones(3).copy_(torch.rand(3))",
    ],
)
def test_values_that_depend_on_random_or_empty_memory_are_not_known(value):
    found = estimate(f"import torch\nassert ({value})[0].item() == 0")
    assert found.reads == ("train.py:2",)


def test_a_tensor_from_before_is_known():
    data = torch.tensor([1, 2])
    code = compile("assert (data + 1).tolist() == [2, 3]", "train.py", "exec")
    assert estimate_program(lambda: lambda: exec(code, {"data": data})).reads == ()


def test_large_values_are_not_computed():
    """They would take real memory: 4 TiB here."""
    found = estimate("import torch\nassert not torch.ones(1 << 40).all()")
    assert (found.tensor_bytes, found.reads) == ((4 << 40) + 1, ("train.py:2",))


@pytest.mark.parametrize("is_padded", [False, True], ids=["full", "padded"])
def test_a_llama_takes_the_bytes_of_a_real_run(is_padded):
    """The library builds a mask for each layer if a tensor is fake or has padding."""
    transformers = pytest.importorskip("transformers")

    def train():
        config = transformers.LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
        )
        model = transformers.LlamaForCausalLM(config)
        optimizer = torch.optim.SGD(model.parameters(), foreach=False)
        ids = torch.randint(3, 64, (2, 160))
        mask = torch.ones_like(ids)
        if is_padded:
            mask[-1, 80:] = 0
        model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
        optimizer.step()

    assert estimated_as_in_a_real_run(train).reads == ()


def test_a_model_that_torch_jit_traces_takes_the_bytes_of_a_real_run():
    """While it traces, a read of a shape makes a tensor."""

    def train():
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), foreach=False)
        traced = torch.jit.trace(model, torch.ones(2, 8), check_trace=False)
        traced(torch.ones(32, 8)).sum().backward()
        optimizer.step()

    estimated_as_in_a_real_run(train)


def test_checks_of_a_distribution_pass_and_take_the_bytes_of_a_real_run():
    """Each distribution checks its parameters and its values, and a fake tensor has no value to check."""
    from torch.distributions import Categorical, Normal, kl_divergence

    def train():
        layer = nn.Linear(8, 6)
        out = layer(torch.randn(64, 8))
        choice = Categorical(logits=out[:, :4])
        place = Normal(out[:, 4], out[:, 5].exp())
        score = choice.log_prob(choice.sample()) + place.log_prob(place.rsample()) + choice.entropy()
        (score + kl_divergence(place, Normal(torch.zeros(64), torch.ones(64)))).sum().backward()

    assert estimated_as_in_a_real_run(train).reads == ()
