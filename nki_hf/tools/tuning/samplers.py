"""Samplers: optuna chooses what is tried next. Its storage may be shared: every command on it works for the same study."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import math
import random
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nki_hf.errors import require
from nki_hf.tools.tuning.address import masked
from nki_hf.tools.tuning.space import Space, combinations, key_of

__all__ = ["SAMPLERS", "Sampled"]

_ATTEMPTS = 20
_LOOK = 0.1
_SPARE = 10.0
"""Seconds beyond the limit of a trial after which its process is taken for dead."""
_DRAWS = 50
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
      seed: of the sampler; processes that give the same one draw otherwise all the same. None = a new one.
      limit: seconds of one trial. One that another process does not end in that time may be tried again.

    Raises:
      BackendUnavailable: optuna is not installed.
      ValueError: the storage cannot be used.
    """

    def __init__(
        self, space: Space, sampler: str, storage: str, name: str, trials: int, seed: int | None, limit: float = 60.0
    ) -> None:
        require("nki_hf tune --sampler", "tune", "optuna")
        self._optuna: Any = importlib.import_module("optuna")
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        self._space, self._trials, self._limit = space, trials, limit
        self._sampler, self._seed, self._joined = sampler, seed, False
        self._own, self._random = self._drawing(seed), random.Random(seed)
        self._seen: dict[int, float] = {}
        values = repr(sorted((constant, list(values)) for constant, values in space.items()))
        name = f"{name}-{hashlib.sha256(values.encode()).hexdigest()[:8]}"  # it stores places in the space, no values
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._study = self._optuna.create_study(
                    storage=self._storage(storage),
                    sampler=self._own,
                    study_name=name,
                    load_if_exists=True,
                    direction="minimize",
                )
                return
            except Exception as error:  # of optuna, SQLAlchemy or the file system
                if "://" in storage and left and any(word in str(error) for word in _MEANWHILE):
                    time.sleep(0.3)  # another process makes the tables of a new database at this moment
                    continue
                text = masked(" ".join(str(error).split()), storage)[:300]
                raise ValueError(f"storage={masked(storage)!r} cannot be used ({type(error).__name__}: {text}).") from None

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
        """Trials and their constants until the study has all of its results. What has been tried, or is under way in another
        process, is not tried again; the last ones of others are waited for.
        """
        wanted = min(self._trials, math.prod(len(values) for values in self._space.values()))
        wish: dict[str, int] | None = None
        while True:
            ended, running = self._taken()
            if len(ended) >= wanted:
                return
            if len(ended | running) >= wanted:
                time.sleep(_LOOK)
                continue
            self._study.sampler = self._made(wish)
            trial = self._study.ask()
            if not self._joined and self._seed is not None and trial.number:
                # every process has another first trial, and so another seed: with the same one they would draw the same
                mixed = (self._seed * 1_000_003 + trial.number) % (1 << 32)
                self._own, self._random = self._drawing(mixed), random.Random(mixed)
                self._study.sampler = self._made(wish)
            self._joined = True
            try:
                indices = {name: trial.suggest_int(name, 0, len(values) - 1) for name, values in self._space.items()}
            except self._optuna.exceptions.UpdateFinishedTrialError:
                continue  # it was queued, and another process is through with it
            constants = self._constants(indices)
            ended, running = self._taken(trial.number)
            if key_of(constants) not in ended | running:
                wish = None
                yield trial, constants
                continue
            self._tell(trial, state="PRUNED")
            wish = self._free(ended | running)  # the sampler is sure: take what nobody has tried, so that every trial counts

    def _taken(self, own: int = -1) -> tuple[set[str], set[str]]:
        """What has been tried, and what other processes have under way, `own` left out."""
        ended, running = set(), set()
        now = time.monotonic()
        for trial in self._study.get_trials(deepcopy=False):
            if len(trial.params) < len(self._space) or trial.number == own:
                continue
            if trial.state.name in ("COMPLETE", "FAIL"):
                ended.add(key_of(self._constants(trial.params)))
            elif trial.state.name == "RUNNING" and now - self._seen.setdefault(trial.number, now) < self._limit + _SPARE:
                running.add(key_of(self._constants(trial.params)))
        return ended, running

    def _made(self, wish: dict[str, int] | None) -> Any:
        """The sampler, or one that gives what is wished for."""
        if wish is None:
            return self._own
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is called experimental
            return self._optuna.samplers.PartialFixedSampler(wish, self._own)

    def _drawing(self, seed: int | None) -> Any:
        classes = self._optuna.samplers
        if self._sampler == "random":
            return classes.RandomSampler(seed=seed)
        return classes.TPESampler(seed=seed, n_startup_trials=min(10, max(2, self._trials // 4)), constant_liar=True)

    def told(self, trial: Any, result: Mapping[str, Any]) -> None:
        """The result of a trial: `us`, or `failed`, a sentence."""
        if "us" in result:
            self._tell(trial, float(result["us"]))
            return
        with contextlib.suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            trial.set_user_attr("failed", str(result.get("failed", "")))
        self._tell(trial, state="FAIL")

    def _tell(self, trial: Any, us: float | None = None, state: str = "COMPLETE") -> None:
        """Ends a trial. A database without row locks (SQLite) may hand a queued trial to two processes: the first one's word
        stands, since both ran the same constants.
        """
        with contextlib.suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            self._study.tell(trial, us, state=self._optuna.trial.TrialState[state], skip_if_finished=True)

    def results(self) -> dict[str, dict[str, Any]]:
        """Results of all processes by `key_of`: `us` or `failed`."""
        found: dict[str, dict[str, Any]] = {}
        for trial in self._study.get_trials(deepcopy=False):
            key = key_of(self._constants(trial.params)) if len(trial.params) == len(self._space) else ""
            if key and trial.state.name == "COMPLETE":
                found[key] = {"us": float(trial.value)}
            elif key and trial.state.name == "FAIL":
                found.setdefault(key, {"failed": trial.user_attrs.get("failed", "")})
        return found

    def _constants(self, indices: dict[str, int]) -> dict[str, Any]:
        return {name: values[indices[name]] for name, values in self._space.items()}

    def _free(self, taken: set[str]) -> dict[str, int] | None:
        """One of the combinations that are left, drawn, so that two processes do not take the same in turn."""
        for _ in range(_DRAWS):
            indices = {name: self._random.randrange(len(values)) for name, values in self._space.items()}
            if key_of(self._constants(indices)) not in taken:
                return indices
        places = {name: range(len(values)) for name, values in self._space.items()}
        left = [indices for indices in combinations(places) if key_of(self._constants(indices)) not in taken]
        return self._random.choice(left) if left else None
