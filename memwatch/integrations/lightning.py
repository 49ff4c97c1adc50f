"""A callback for the `Trainer` of lightning, and of pytorch_lightning where that is what the program has.

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
        path: where the capture goes, which may hold `{rank}`, `{pid}` and `{host}`; None keeps it in memory.
        page: where the page goes at the end; None writes none.
        schedule: which steps are recorded; see `memwatch.profile`.
        options: the other options of `memwatch.profile`.

    Attributes:
        profile: the recording, which can be read when `fit` is over.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        page: str | os.PathLike[str] | None = None,
        schedule: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._training = Training(path, page=page, schedule=schedule, **options)

    @property
    def profile(self) -> Profile | None:
        """The recording of the last `fit`, None before the first."""
        return self._training.profile

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Enter the block."""
        self._training.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Mark an iteration."""
        self._training.step()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the block and log the peak."""
        figures = self._training.end(together=True)
        for logger in trainer.loggers if figures else ():
            logger.log_metrics(figures, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the block of a `fit` that failed; the page shows what it had."""
        self._training.end()
