"""A callback for the `Trainer` of transformers.

trainer = Trainer(model, arguments, train_dataset=data)
trainer.add_callback(MemwatchCallback(trainer, page="peak.html"))
trainer.train()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from memwatch.integrations.training import Training

if TYPE_CHECKING:
    import os

    from memwatch.profile import Profile


class MemwatchCallback(TrainerCallback):
    """Record a training from its beginning to its end, and log its peak as the trainer logs.

    The figures are in `trainer.state.log_history`. If you pass the trainer, the figures also go to all its reports,
    such as TensorBoard or Weights & Biases, which a callback alone does not reach.

    Args:
        trainer: the trainer that logs; None adds to its history alone.
        path: the file of the capture, which may hold `{rank}`, `{pid}` and `{host}`; None keeps it in memory.
        page: the file of the page, written at the end; by default there is no page.
        schedule: the steps to record; see `memwatch.profile`.
        log_steps: whether the peak of the steps is logged while the training runs, as often as that is cheap.
        options: the other options of `memwatch.profile`.

    Attributes:
        profile: the recording, which you can read when the training is over.
    """

    def __init__(
        self,
        trainer: Any = None,
        path: str | os.PathLike[str] | None = None,
        *,
        page: str | os.PathLike[str] | None = None,
        schedule: Any = None,
        log_steps: bool = True,
        **options: Any,
    ) -> None:
        log = self._log if log_steps else None
        self._training = Training(path, page=page, schedule=schedule, log=log, **options)
        self._state: Any = None
        self._trainer = trainer

    @property
    def profile(self) -> Profile | None:
        """The recording of the last training, None before the first."""
        return self._training.profile

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Enter the block."""
        self._state = state
        self._training.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark an iteration."""
        self._training.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the block and log the peak."""
        figures = self._training.end(together=True)
        if figures:
            self._log(figures)
        self._state = None

    def _log(self, figures: dict[str, int]) -> None:
        if not self._state.is_world_process_zero:
            return
        if self._trainer is not None:
            self._trainer.log(figures)
        else:
            self._state.log_history.append({**figures, "step": self._state.global_step})
