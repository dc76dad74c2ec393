"""Samplers: optuna chooses what is tried next. Its storage may be shared: every command on it works for the same study."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nki_hf.errors import require
from nki_hf.tools.tuning.space import Space, combinations, key_of

__all__ = ["SAMPLERS", "Sampled"]

_ATTEMPTS = 20
_MEANWHILE = ("already exists", "UNIQUE constraint", "duplicate key", "database is locked")

SAMPLERS = ("tpe", "random")


class Sampled:
    """A study of optuna over a finite space.

    Args:
      space: values by constant.
      sampler: one of `SAMPLERS`.
      storage: a file for optuna's journal, the address of a database (`sqlite:///FILE`, `postgresql://...`), or empty: this
        process alone.
      name: the study; commands that give the same name, space (values in the same order) and storage share it.
      trials: how many results the study is to have, those of other processes included.
      seed: of the sampler; each process should have its own.

    Raises:
      BackendUnavailable: optuna is not installed.
      ValueError: the storage cannot be used.
    """

    def __init__(self, space: Space, sampler: str, storage: str, name: str, trials: int, seed: int | None) -> None:
        require("nki_hf tune --sampler", "tune", "optuna")
        self._optuna: Any = importlib.import_module("optuna")
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        self._space, self._trials = space, trials
        classes = self._optuna.samplers
        made = {
            "tpe": lambda: classes.TPESampler(seed=seed, n_startup_trials=min(10, max(2, trials // 4)), constant_liar=True),
            "random": lambda: classes.RandomSampler(seed=seed),
        }
        values = repr(sorted((constant, list(values)) for constant, values in space.items()))
        name = f"{name}-{hashlib.sha256(values.encode()).hexdigest()[:8]}"  # it stores places in the space, no values
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._study = self._optuna.create_study(
                    storage=self._storage(storage), sampler=made[sampler](), study_name=name, load_if_exists=True,
                    direction="minimize",
                )  # fmt: skip
                return
            except Exception as error:  # of optuna, SQLAlchemy or the file system
                if "://" in storage and left and any(word in str(error) for word in _MEANWHILE):
                    time.sleep(0.3)  # another process makes the tables of a new database at this moment
                    continue
                text = " ".join(str(error).split())[:300]
                raise ValueError(f"storage={storage!r} cannot be used ({type(error).__name__}: {text}).") from None

    def _storage(self, text: str) -> Any:
        if not text:
            return None
        storages = self._optuna.storages
        if "://" in text:
            return storages.RDBStorage(
                url=text, engine_kwargs={"connect_args": {"timeout": 30}} if text.startswith("sqlite") else None
            )
        path = Path(text)
        if path.exists() and not path.is_file():
            raise ValueError("it is no file")
        lock = storages.journal.JournalFileOpenLock(str(path))  # works on every file system
        return storages.JournalStorage(storages.journal.JournalFileBackend(str(path), lock_obj=lock))

    def asked(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Trials and their constants until the study has all of its results; what has been tried is not tried again."""
        whole = math.prod(len(values) for values in self._space.values())
        while True:
            trials = [trial for trial in self._study.get_trials(deepcopy=False) if len(trial.params) == len(self._space)]
            tried = {key_of(self._constants(trial.params)) for trial in trials if trial.state.name in ("COMPLETE", "FAIL")}
            if len(tried) >= min(self._trials, whole):
                return
            trial = self._study.ask()
            try:
                indices = {name: trial.suggest_int(name, 0, len(values) - 1) for name, values in self._space.items()}
            except self._optuna.exceptions.UpdateFinishedTrialError:
                continue  # another process took the same queued trial and is through with it
            constants = self._constants(indices)
            if key_of(constants) not in tried:
                yield trial, constants
                continue
            self._tell(trial, state="PRUNED")
            self._enqueue(tried)  # the sampler is sure: take what nobody has tried, so that every trial counts

    def told(self, trial: Any, us: float | None) -> None:
        """The result of a trial; None = it failed."""
        if us is None:
            self._tell(trial, state="FAIL")
        else:
            self._tell(trial, us)

    def _tell(self, trial: Any, us: float | None = None, state: str = "COMPLETE") -> None:
        """Ends a trial. A database without row locks (SQLite) may hand a queued trial to two processes: the first one's word
        stands, since both ran the same constants.
        """
        with contextlib.suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            self._study.tell(trial, us, state=self._optuna.trial.TrialState[state], skip_if_finished=True)

    def results(self) -> dict[str, float]:
        """Times of all processes by `key_of`."""
        done = [trial for trial in self._study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
        return {key_of(self._constants(trial.params)): float(trial.value) for trial in done}

    def _constants(self, indices: dict[str, int]) -> dict[str, Any]:
        return {name: values[indices[name]] for name, values in self._space.items()}

    def _enqueue(self, tried: set[str]) -> None:
        places = {name: range(len(values)) for name, values in self._space.items()}
        for indices in combinations(places):
            if key_of(self._constants(indices)) not in tried:
                self._study.enqueue_trial(indices)
                return
