"""Every word as true as the bytes, of programs that use transformers."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("transformers")

import patterns_transformers
import patterns_transformers_generation
from truth_checks import (
    RIGHT_RATIO,
    programs_of,
    run,
    test_a_second_run_shows_the_same,  # noqa: F401
    test_findings_name_a_line_of_the_program,  # noqa: F401
    test_the_peak_is_that_of_a_plain_run,  # noqa: F401
    test_what_is_said_of_the_peak_is_true,  # noqa: F401
)
from truth_facts import PATTERNS
from truth_score import score

import memwatch
from memwatch.record.holders.state import SamplingCosts

PROGRAMS = programs_of(patterns_transformers, patterns_transformers_generation)


@pytest.mark.words
@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("gpt2_that_searches_beams", 0.0),
        ("gpt2_that_searches_beams", 1.0),
        ("mistral_with_a_sliding_window", 0.8),
        ("mistral_with_a_sliding_window", 1.0),
    ],
)
def test_what_is_said_of_the_peak_is_true_with_any_share_of_the_samples(name, ratio, monkeypatch):
    """A fast machine takes more samples than a busy one. More samples never make an answer worse."""
    chance = random.Random(1)
    monkeypatch.setattr(SamplingCosts, "is_affordable", lambda self: chance.random() < ratio)
    found = score(PATTERNS[name], run(name))
    assert found.false == []
    assert found.right_ratio >= RIGHT_RATIO, "\n".join(found.wrong)


def test_a_callback_records_a_training(tmp_path, monkeypatch):
    """Steps are the optimizer's. The peak is in the trainer's history and in its reports."""
    import transformers

    from memwatch.integrations import training
    from memwatch.integrations.transformers import MemwatchCallback

    monkeypatch.setattr(training, "_SHARE_RATIO", float("inf"))  # every step is logged, whatever it takes
    seen = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append((state.global_step, logs))

    arguments = transformers.TrainingArguments(
        tmp_path, use_cpu=True, max_steps=2, gradient_accumulation_steps=2, per_device_train_batch_size=1,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(
        patterns_transformers.gpt2(),
        arguments,
        train_dataset=patterns_transformers.sentences(4),
        callbacks=[Reporter()],
    )
    callback = MemwatchCallback(trainer, tmp_path / "a.memwatch", page=tmp_path / "a.html", stacks=False)
    trainer.add_callback(callback)
    trainer.train()
    prof = callback.profile
    (logged,) = [logs for logs in trainer.state.log_history if "memwatch/peak_bytes" in logs]
    assert (
        logged["memwatch/peak_bytes"] == prof.peak_bytes == memwatch.load(tmp_path / "a.memwatch").peak_bytes
    )
    assert any("memwatch/peak_bytes" in logs for _, logs in seen)
    steps = {step: logs for step, logs in seen if "memwatch/step_peak_bytes" in logs}
    peaks = [logs["memwatch/step_peak_bytes"] for logs in steps.values()]
    assert (list(steps), peaks) == ([1, 2], prof.steps.peak_bytes[:2].tolist())
    for logs in steps.values():
        assert logs["memwatch/step_peak_bytes/parameter"] > 0
        parts = sum(nbytes for name, nbytes in logs.items() if name.startswith("memwatch/step_peak_bytes/"))
        assert parts == logs["memwatch/step_peak_bytes"]
    assert len(prof.steps) in (2, 3)  # the end of the trainer may count as one more
    assert f'data-bytes="{prof.peak_bytes}"' in (tmp_path / "a.html").read_text()


def test_a_callback_without_its_trainer_adds_to_the_history():
    """The state that every callback gets has the figures at the end."""
    import transformers

    from memwatch.integrations.transformers import MemwatchCallback

    state, callback = transformers.TrainerState(global_step=7), MemwatchCallback(stacks=False)
    callback.on_train_begin(None, state, None)
    callback.on_train_end(None, state, None)
    (logged,) = state.log_history
    assert (logged["memwatch/peak_bytes"], logged["step"]) == (callback.profile.peak_bytes, 7)
