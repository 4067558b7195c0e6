"""A mixture in progress: its schedule, its record in saved states, and the change to other weights."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pagestream import _native
from pagestream.errors import StateMismatchError
from pagestream.loading.mixture import whole_weights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pagestream.loading.mixture import Mixture

_BELOW = 1 << 63
# Number of differences that an error lists.
_LISTED = 3


class _Source(NamedTuple):
    """A source in a saved state."""

    fingerprint: str
    weight: int
    # It determines the order of the source, even in later mixtures with other sources.
    number: int
    epoch: int
    windows_consumed: int
    # The progress of the source when these weights took effect.
    start_epoch: int
    start_windows_consumed: int


class _Record(NamedTuple):
    """A mixture in a saved state."""

    version: object
    exhausted: object
    # Samples and passes of the stream before these weights.
    start_samples: int
    start_pass: int
    sources: list[_Source]


class MixtureRun:
    """The stream of a mixture from its start on.

    A stream starts with all sources unread, or continues from a mixture with other weights or sources.

    Args:
        mixture: The corpora, the weights and the policy.
        windows: The number of windows of each corpus.
        start: Earlier samples and passes, and number, epoch and used windows of each source; None for a
            stream that starts with all sources unread.
    """

    def __init__(
        self,
        mixture: Mixture,
        windows: Sequence[int],
        start: tuple[int, int, list[tuple[int, int, int]]] | None = None,
    ) -> None:
        self._mixture = mixture
        self._windows = windows
        self.native = _native.Mixture(whole_weights(mixture), windows, mixture.exhausted, start)
        places = [(number, 0, 0) for number in range(len(windows))]
        self._start = (0, 0, places) if start is None else start

    @property
    def first_epoch(self) -> int:
        """The first epoch that has these weights from its beginning."""
        _, passes, places = self._start
        return passes + any(windows for _, _, windows in places)

    def record(self, position: int) -> dict[str, Any]:
        """Returns the record for a state: weights, sources, and the number of windows used of each source."""
        samples, passes, starts = self._start
        _, places = self.native.progress(position)
        weights = whole_weights(self._mixture)
        sources = [
            _Source(corpus.fingerprint, weight, number, epoch, windows, start_epoch, start_windows)._asdict()
            for corpus, weight, (number, epoch, windows), (_, start_epoch, start_windows) in zip(
                self._mixture.sources, weights, places, starts, strict=True
            )
        ]
        return {
            "version": _native.MIXTURE_VERSION,
            "exhausted": self._mixture.exhausted,
            "start_samples": samples,
            "start_pass": passes,
            "sources": sources,
        }

    def resumed(
        self, state: Mapping[str, Any], position: int, *, strict: bool, new_mixture: bool
    ) -> MixtureRun:
        """Returns the run that continues from a state.

        Args:
            state: The state. Settings other than the mixture's are already checked.
            position: Its position, in samples.
            strict: Whether to reject a state of another mixture. If not, the run starts with all sources
                unread at sample 0, as if it had always had these weights.
            new_mixture: Whether to continue from another mixture, with each source at its position.

        Raises:
            StateMismatchError: The state belongs to another mixture, or its record is malformed.
        """
        record: _Record | None
        if "mixture" in state:
            record = _parsed(state["mixture"])
            found = self._differences(record)
        else:
            record = self._record_of_one_corpus(state, position)
            found = ["the state has no record of a mixture: it is of one corpus, or of an earlier release"]
        try:
            if not found and record is not None:
                places = [
                    (source.number, source.start_epoch, source.start_windows_consumed)
                    for source in record.sources
                ]
                run = MixtureRun(
                    self._mixture, self._windows, (record.start_samples, record.start_pass, places)
                )
            elif new_mixture:
                run = self._taken_over(record, state, position)
            elif strict:
                message = (
                    f"the state is of another mixture: {'; '.join(found)}. Pass new_mixture=True to go on "
                    "with each source from where it was, or strict=False to take the position alone"
                )
                raise StateMismatchError(message)
            else:
                run = MixtureRun(self._mixture, self._windows)
            run.native.progress(position)
        except (ValueError, OverflowError) as error:
            if isinstance(error, StateMismatchError):
                raise
            message = f"the state's record of its mixture is wrong: {error}; use a state as it was saved"
            raise StateMismatchError(message) from error
        return run

    def _taken_over(self, record: _Record | None, state: Mapping[str, Any], position: int) -> MixtureRun:
        """Returns a run that starts at a position with the sources as another mixture left them."""
        known: defaultdict[str, deque[_Source]] = defaultdict(deque)
        for source in record.sources if record else ():
            known[source.fingerprint].append(source)
        fingerprints = [corpus.fingerprint for corpus in self._mixture.sources]
        if record is None or not any(fingerprint in known for fingerprint in fingerprints):
            message = (
                "no source of this mixture is in the state, so there is nothing to go on from; "
                "pass strict=False to take the position alone"
            )
            raise StateMismatchError(message)
        places = []
        fresh = 1 + max(source.number for source in record.sources)
        for fingerprint in fingerprints:
            # The same corpus may occur twice.
            if known[fingerprint]:
                source = known[fingerprint].popleft()
                places.append((source.number, source.epoch, source.windows_consumed))
            else:
                places.append((fresh, 0, 0))
                fresh += 1
        passes = _count(state.get("epoch") or 0, "epoch")
        return MixtureRun(self._mixture, self._windows, (position, passes, places))

    def _record_of_one_corpus(self, state: Mapping[str, Any], position: int) -> _Record | None:
        """Returns a record for the state of a loader of a single corpus; None if the corpus is not here."""
        for corpus, windows in zip(self._mixture.sources, self._windows, strict=True):
            if corpus.fingerprint == state.get("fingerprint"):
                epoch, consumed = divmod(position, windows)
                source = _Source(corpus.fingerprint, 1, 0, epoch, consumed, 0, 0)
                return _Record(None, None, 0, 0, [source])
        return None

    def _differences(self, record: _Record) -> list[str]:
        """Returns the differences between a record and this mixture, in words."""
        found = []
        if record.version != _native.MIXTURE_VERSION:
            version, expected = record.version, _native.MIXTURE_VERSION
            found.append(f"its schedule has version {version!r}; this release has {expected}")
        if record.exhausted != self._mixture.exhausted:
            found.append(
                f"exhausted is {record.exhausted!r} in the state and {self._mixture.exhausted!r} here"
            )
        saved = [source.fingerprint for source in record.sources]
        present = [corpus.fingerprint for corpus in self._mixture.sources]
        if saved != present:
            return [*found, *_differing_sources(saved, present)]
        weights = whole_weights(self._mixture)
        total, saved_total = sum(weights), sum(source.weight for source in record.sources)
        differing = [
            f"the weight of source {number} is {source.weight / max(saved_total, 1):.6g} in the state and "
            f"{weight / total:.6g} here"
            for number, (source, weight) in enumerate(zip(record.sources, weights, strict=True))
            if source.weight * total != weight * saved_total
        ]
        return [*found, *_shortened(differing)]


def _differing_sources(saved: Sequence[str], present: Sequence[str]) -> Iterable[str]:
    gone = [
        f"source {number} of the state ({fingerprint}) is not here"
        for number, fingerprint in enumerate(saved)
        if fingerprint not in present
    ]
    new = [
        f"source {number} here ({fingerprint}) is not in the state"
        for number, fingerprint in enumerate(present)
        if fingerprint not in saved
    ]
    if gone or new:
        return [*_shortened(gone), *_shortened(new)]
    if len(saved) != len(present):
        return [f"the state has {len(saved)} sources, and here are {len(present)}"]
    return ["the sources are in another order"]


def _shortened(differences: list[str]) -> list[str]:
    more = len(differences) - _LISTED
    return differences if more <= 0 else [*differences[:_LISTED], f"and {more} more"]


def _parsed(record: object) -> _Record:
    """Returns the record of a mixture in a state.

    Raises:
        StateMismatchError: The record is malformed.
    """
    sources = record.get("sources") if isinstance(record, Mapping) else None
    if not isinstance(record, Mapping) or not isinstance(sources, Sequence) or not sources:
        message = f"the state's record of its mixture is {record!r}; it must be a dict with its sources"
        raise StateMismatchError(message)
    parsed = []
    for number, source in enumerate(sources):
        if not isinstance(source, Mapping) or not isinstance(source.get("fingerprint"), str):
            message = f"source {number} of the state is {source!r}; it must be a dict with a fingerprint"
            raise StateMismatchError(message)
        counts = (_count(source.get(name), f"{name} of source {number}") for name in _Source._fields[1:])
        parsed.append(_Source(source["fingerprint"], *counts))
    start_samples, start_pass = (_count(record.get(name), name) for name in ("start_samples", "start_pass"))
    return _Record(record.get("version"), record.get("exhausted"), start_samples, start_pass, parsed)


def _count(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _BELOW:
        message = f"{name} is {value!r} in the state; it must be an int, 0 or more and below 2^63"
        raise StateMismatchError(message)
    return value
