"""A callback for the `Trainer` of lightning, or of pytorch_lightning if the program uses that.

trainer = lightning.Trainer(callbacks=[MemwatchCallback(page="peak.html")])
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from memwatch.integrations.training import Training

if importlib.util.find_spec("lightning") is not None:
    from lightning.pytorch import Callback
else:
    from pytorch_lightning import Callback

if TYPE_CHECKING:
    import os

    from memwatch.profile import Profile


class MemwatchCallback(Callback):
    """Record `fit` from its beginning to its end, and log its peak with the trainer's loggers.

    Args:
        path: the file of the capture, which may hold `{rank}`, `{pid}` and `{host}`; None keeps it in memory.
        page: the file of the page, written at the end; by default there is no page.
        schedule: the steps to record; see `memwatch.profile`.
        log_steps: whether the loggers get the peak of the batches while `fit` runs, as often as that is cheap.
        options: the other options of `memwatch.profile`.

    Attributes:
        profile: the recording, which you can read when `fit` is over.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        page: str | os.PathLike[str] | None = None,
        schedule: Any = None,
        log_steps: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        log = self._log if log_steps else None
        self._training = Training(path, page=page, schedule=schedule, log=log, **options)
        self._trainer: Any = None

    @property
    def profile(self) -> Profile | None:
        """The recording of the last `fit`, None before the first."""
        return self._training.profile

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Enter the block."""
        self._trainer = trainer
        self._training.begin()

    def _log(self, figures: dict[str, int]) -> None:
        for logger in self._trainer.loggers:
            logger.log_metrics(figures, step=self._trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Mark an iteration."""
        self._training.step()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the block and log the peak."""
        figures = self._training.end(together=True)
        if figures:
            self._log(figures)
        self._trainer = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the block of a `fit` that failed; the page shows its memory."""
        self._training.end()
        self._trainer = None
