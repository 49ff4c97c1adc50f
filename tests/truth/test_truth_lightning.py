"""Every word as true as the bytes, of programs that use lightning."""

from __future__ import annotations

import csv

import pytest

pytest.importorskip("lightning")

import patterns_lightning
from truth_checks import (
    programs_of,
    test_a_second_run_shows_the_same,  # noqa: F401
    test_findings_name_a_line_of_the_program,  # noqa: F401
    test_the_peak_is_that_of_a_plain_run,  # noqa: F401
    test_what_is_said_of_the_peak_is_true,  # noqa: F401
)

PROGRAMS = programs_of(patterns_lightning)


def test_a_callback_records_a_fit(tmp_path, monkeypatch):
    """Each batch is a step, the peak goes to the trainer's loggers, and a fit that fails leaves its page."""
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    from memwatch.integrations import training
    from memwatch.integrations.lightning import MemwatchCallback

    monkeypatch.setattr(training, "_SHARE_RATIO", float("inf"))  # every step is logged, whatever it takes

    class Failing(patterns_lightning.Lit):
        def training_step(self, batch, number):
            if number == 1:
                raise ZeroDivisionError
            return super().training_step(batch, number)

    def fit(lit, callback):
        trainer = lightning.Trainer(
            accelerator="cpu", max_steps=3, logger=CSVLogger(tmp_path), callbacks=[callback],
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(lit, patterns_lightning.loader(rows=8))
        with open(f"{trainer.logger.log_dir}/metrics.csv") as file:
            return list(csv.DictReader(file))

    callback = MemwatchCallback(page=tmp_path / "a.html", stacks=False)
    logged = fit(patterns_lightning.Lit(), callback)
    peaks = [row["memwatch/peak_bytes"] for row in logged if row["memwatch/peak_bytes"]]
    assert peaks == [str(callback.profile.peak_bytes)]
    steps = [row["memwatch/step_peak_bytes"] for row in logged if row["memwatch/step_peak_bytes"]]
    assert steps == [str(peak) for peak in callback.profile.steps.peak_bytes[:3]]
    assert len(callback.profile.steps) in (3, 4)  # the end of the trainer may count as one more
    with pytest.raises(ZeroDivisionError):
        fit(Failing(), callback)
    assert f'data-bytes="{callback.profile.peak_bytes}"' in (tmp_path / "a-2.html").read_text()
