"""A program that names "cuda" is estimated as it is, on a torch that is built for the host alone as well."""

from __future__ import annotations

import gc
import json
import textwrap

import pytest
import torch

from memwatch.cli.main import main
from memwatch.devices import pretended
from memwatch.errors import MemwatchError
from memwatch.estimate.job import Job
from memwatch.estimate.program import estimate_program
from memwatch.report.records.schema import EstimateRecord

TRAINING = """
    import os, torch
    from torch import distributed, nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.utils.checkpoint import checkpoint
    device = "{device}"
    torch.manual_seed(0)
    {before}
    model = nn.Sequential(nn.Linear(33, 64), nn.GELU(), nn.Linear(64, 7)).to(device)
    {wrapped}
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    scaler = torch.amp.GradScaler(device)
    for _ in range(3):
        batch = torch.ones(16, 33).to(device, non_blocking=True)
        {step}
        optimizer.zero_grad()
"""
PLAIN = "model(batch).sum().backward(); optimizer.step()"
JOB = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])); distributed.init_process_group("nccl")'
DDP = "model = nn.parallel.DistributedDataParallel(model, device_ids=[0] if device == 'cuda' else None)"
FSDP2 = "mesh = init_device_mesh(device, (2,)); [fully_shard(model[i], mesh=mesh) for i in (0, 2)]"
MIXED = """with torch.autocast(device, torch.bfloat16):
            loss = checkpoint(model, batch, use_reentrant=False).float().sum()
        scaler.scale(loss).backward(); scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer); scaler.update(); loss.item()"""
WAYS = {
    "plain": {"before": "", "wrapped": "", "step": PLAIN},
    "mixed precision, checkpointed": {"before": "", "wrapped": "", "step": MIXED},
    "ddp": {"before": JOB, "wrapped": DDP, "step": PLAIN},
    "fsdp2": {"before": JOB, "wrapped": FSDP2, "step": PLAIN},
}


def estimate(source, **options):
    """Return the estimate of a program."""
    gc.collect()  # fake tensors of an earlier program would be there at entry
    code = compile(textwrap.dedent(source), "train.py", "exec")
    return estimate_program(lambda: lambda: exec(code, {"__name__": "__main__"}), **options)


@pytest.mark.filterwarnings("ignore:Attempted to get default timeout for nccl")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_program_takes_the_same_bytes_on_cuda_as_on_the_host(way):
    """The device is chosen by name: nothing says that there is a GPU."""
    job = Job(1, 2) if way["before"] else Job()
    host, cuda = (estimate(TRAINING.format(device=device, **way), job=job) for device in ("cpu", "cuda"))
    assert (host.reading.device, cuda.reading.device) == ("cpu", "cuda:0")
    assert (host.steps, cuda.steps) == (3, 3)
    ranks_of_mesh_bytes = 2 * 4 if way["wrapped"] == FSDP2 else 0  # they stay on the host
    assert cuda.tensor_bytes == host.tensor_bytes - ranks_of_mesh_bytes


def test_a_model_that_is_moved_keeps_its_parameters():
    """As on a GPU: tied ones stay tied, an optimizer that has them steps, and gradients move along."""
    estimate("""
        import torch
        from torch import nn
        model = nn.ModuleList([nn.Embedding(9, 3), nn.Linear(3, 9, bias=False)])
        model[1].weight = weight = model[0].weight
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        model[1](torch.ones(2, 3)).sum().backward()
        model.cuda().half().float()
        assert model[0].weight is model[1].weight is weight and weight.is_cuda and weight.grad.is_cuda
        model[1](torch.ones(2, 3).cuda()).sum().backward()
        optimizer.step()
        assert optimizer.state[weight]["momentum_buffer"].is_cuda
    """)


def test_what_programs_ask_of_a_gpu_is_there():
    """Streams, events, generators, pinned memory, marks. No bytes are in use, and the line that asks is named."""
    found = estimate("""
        import torch
        torch.cuda.set_device(1)
        assert torch.cuda.current_device() == 1 and torch.ones(3).cuda().device.index == 1
        with torch.cuda.device(0):
            x = torch.randn(4, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
            assert x.device.index == torch.cuda.current_device() == 0
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        with torch.cuda.stream(side):
            y = torch.ones(4).pin_memory().to("cuda", non_blocking=True)
            y.record_stream(side)
        end.record(side); side.wait_event(end); end.synchronize(); begin.elapsed_time(end)
        torch.cuda.nvtx.range_push("step"); torch.cuda.nvtx.range_pop()
        assert not torch.cuda.is_current_stream_capturing()
        torch.cuda.synchronize(); torch.cuda.empty_cache(); torch.cuda.manual_seed_all(1)
        torch.cuda.get_device_properties(0).total_memory
        print(torch.cuda.max_memory_allocated() / 2**20)
    """)
    assert found.reads == ("train.py:20",)


def test_fake_tensors_touch_no_gpu_that_is_not_there(monkeypatch):
    """Torch 2.11 makes a real tensor before the first fake one on a GPU; the driver of such a machine refuses it."""

    def refuse(device):
        raise RuntimeError("Found no NVIDIA driver on your system")

    monkeypatch.setattr("torch._subclasses.fake_tensor.init_gpu_context", refuse)
    found = estimate("import torch\nkept = torch.ones(1 << 20).cuda()\n")
    assert (found.reading.device, found.tensor_bytes) == ("cuda:0", 4 << 20)


def test_a_program_that_starts_a_rank_for_each_device_finds_its_job():
    """The rank that is estimated has a device of its own; a host has eight."""
    program = """
        import torch
        from torch import distributed
        def work(rank, world):
            torch.cuda.set_device(rank)
            distributed.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
            kept.append(torch.ones(25, requires_grad=True, device="cuda"))
            (kept[0] * 2).sum().backward()
        kept = []
        torch.multiprocessing.spawn(work, (torch.cuda.device_count(),), torch.cuda.device_count())
    """
    found = estimate(program, job=Job(3, 4), device="cuda")
    assert (found.reading.device, found.tensor_bytes) == ("cuda:3", 208)
    estimate("import torch; assert torch.cuda.device_count() == 8", job=Job(0, 64), device="cuda")


def test_what_only_a_gpu_can_is_refused_with_the_line():
    with pytest.raises(MemwatchError, match=r"^train.py:2 asks the GPU .*CUDAGraph"):
        estimate("import torch\ntorch.cuda.CUDAGraph()")


def test_attention_takes_what_it_takes_on_a_gpu():
    """Neither in half precision nor in full is there a matrix of scores, of 256 x 256 for each head."""
    program = """
        import torch
        q = torch.ones(1, 8, 256, 4, device="cuda", dtype={dtype}, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    """
    for dtype in (torch.bfloat16, torch.float32):
        assert estimate(program.format(dtype=dtype)).tensor_bytes < 8 * 256 * 256 * dtype.itemsize


def test_an_optimizer_takes_all_parameters_at_once_as_on_a_gpu():
    """Its temporaries are as large as the model then, which `foreach=False` avoids."""
    program = """
        import torch
        model = torch.nn.ModuleList(torch.nn.Linear(100, 100, bias=False) for _ in range(4)).to("cuda")
        for each in model.parameters():
            each.grad = torch.ones_like(each)
        torch.optim.Adam(model.parameters(){argument}).step()
    """
    by_default, at_once, one_by_one = (
        estimate(program.format(argument=argument)).tensor_bytes
        for argument in ("", ", foreach=True", ", foreach=False")
    )
    parameters_gradients_states_roots = (1 + 1 + 2 + 1) * 4 * 40_000
    assert by_default == at_once == parameters_gradients_states_roots
    assert one_by_one < at_once


def test_everything_of_the_device_is_put_back():
    """Also what the program sets for the whole process."""

    def state():
        return {**vars(torch.cuda)}, torch.Tensor.pin_memory, torch.get_default_device(), _accelerator()

    before = state()
    estimate("import torch; torch.set_default_device('cuda'); a = torch.ones(1); b = a.cuda()")
    assert state() == before


def _accelerator():
    return torch.accelerator.current_accelerator()


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch knows CUDA")
def test_without_a_compiler_a_move_is_refused_with_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMWATCH_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-compiler")
    pretended.load_or_build.cache_clear()
    try:
        with pytest.raises(
            MemwatchError, match=r"^train.py:1: this torch is built for the host alone .*Install one"
        ):
            estimate("import torch; torch.ones(3).to('cuda')")
    finally:
        pretended.load_or_build.cache_clear()


TWO_LAYERS = """
    import torch
    from torch import nn
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024)).to("{device}")
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        model(torch.ones(8, 1024, device="{device}")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def _model_of_the_allocator(monkeypatch):
    """Have memwatch's model answer, by default settings, whatever torch is installed."""
    monkeypatch.setenv("MEMWATCH_C10_CUDA", "/nowhere/libc10_cuda.so")
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_model_of_the_allocator")
def test_an_estimate_fits_a_device_that_has_what_it_reserves_and_no_smaller_one():
    """Four matrices of 4 MiB share segments of 20 MiB, biases and activations one of 2 MiB."""
    found = estimate(TWO_LAYERS.format(device="cuda"))
    assert found.reserved_bytes == 22 << 20
    assert found.fits("22 MiB")
    assert not found.fits((22 << 20) - 1)
    assert found.is_model


@pytest.mark.usefixtures("_model_of_the_allocator")
def test_an_estimate_uses_the_settings_of_the_environment(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "large_segment_size_mb:40")
    assert estimate(TWO_LAYERS.format(device="cuda")).reserved_bytes == 42 << 20


def test_whether_a_program_on_the_host_fits_a_device_is_not_guessed():
    with pytest.raises(MemwatchError, match=r"put its tensors on the CPU.* --device cuda"):
        estimate(TWO_LAYERS.format(device="cpu")).fits("1 GiB")


@pytest.mark.usefixtures("_model_of_the_allocator")
def test_the_command_exits_with_1_where_the_program_does_not_fit(tmp_path, capsys):
    (tmp_path / "two.py").write_text(textwrap.dedent(TWO_LAYERS.format(device="cuda")))
    words = ["estimate", "--in-place", "--device", "cuda", "--device-memory"]
    assert main([*words, "22MiB", str(tmp_path / "two.py")]) == 0
    assert "- fits a device of 22.00 MiB: 0 B are left for the CUDA context" in capsys.readouterr().out
    assert main([*words, "20MiB", "--json", str(tmp_path / "two.py")]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record.keys() == EstimateRecord.__annotations__.keys()
    assert record["fits"] is False
    assert record["allocator"] == "memwatch's model of torch's allocator"
