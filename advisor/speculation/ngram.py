"""What llama.cpp's n-gram methods would draft on a given text, token by token.

These methods look for the last few tokens in what was already read or written and propose what followed there.
Whether that helps depends on nothing but the text, so it can be replayed without a model: given the prompt and the
tokens that the target really produced, every draft and every acceptance follows.

The drafters below repeat the code of llama.cpp build 11434 (``common/ngram-map.cpp``, ``ngram-mod.cpp``,
``ngram-cache.cpp``, ``speculative.cpp``; the loop around them: ``tools/server/server-context.cpp``), quirks included,
with one slot and no static or dynamic lookup cache. They keep their state between requests as the server does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, get_args

from pydantic import Field

from advisor.base import Frozen
from advisor.errors import InputError
from advisor.speculation.prediction import Method

METHODS: tuple[Method, ...] = tuple(m for m in get_args(Method) if m.startswith("ngram-"))


class Options(Frozen):
    """llama.cpp's n-gram options with its defaults [tokens].

    ``size_n``, ``size_m``, ``min_hits``: ``--spec-ngram-{simple,map-k,map-k4v}-size-n/-size-m/-min-hits``;
    ``match``, ``least``, ``most``: ``--spec-ngram-mod-n-match/-n-min/-n-max``. ngram-cache has no option: its draft
    length is fixed at 8.
    """

    size_n: int = Field(12, ge=1, le=1024)
    size_m: int = Field(48, ge=1, le=1024)
    min_hits: int = Field(1, ge=1, le=1024)
    match: int = Field(24, ge=1, le=1024)
    least: int = Field(48, ge=0, le=1024)
    most: int = Field(64, ge=0, le=1024)


class Replay(Frozen):
    """Counters of one or several replayed requests.

    ``tokens`` generated, ``passes`` of the target after the first token of each request, ``rounds`` of these that
    checked a draft, ``drafted`` and ``accepted`` as llama.cpp counts them (``draft_n``, ``draft_n_accepted``);
    ``replayed`` of the passes only decoded accepted tokens again (recurrent and hybrid targets).
    """

    method: Method
    requests: int
    tokens: int
    passes: int
    rounds: int
    drafted: int
    accepted: int
    replayed: int = 0

    @property
    def acceptance(self) -> float | None:
        """Accepted / drafted; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_length(self) -> float:
        """Tokens per target pass, those without a draft included (1 = no gain)."""
        return (self.tokens - self.requests) / self.passes if self.passes else 1.0

    @property
    def tokens_per_round(self) -> float:
        """Tokens per round, with or without a draft; a replay belongs to its round."""
        rounds = self.passes - self.replayed
        return (self.tokens - self.requests) / rounds if rounds else 1.0

    @property
    def draft_share(self) -> float:
        """Share of rounds that checked a draft."""
        rounds = self.passes - self.replayed
        return self.rounds / rounds if rounds else 0.0

    @property
    def drafted_per_round(self) -> float:
        """Mean draft length where there was one [tokens]."""
        return self.drafted / self.rounds if self.rounds else 0.0

    def __add__(self, other: Replay) -> Replay:
        if other.method != self.method:
            raise InputError(f"Counters of {self.method} and {other.method} do not add up.")
        return Replay(
            method=self.method,
            requests=self.requests + other.requests,
            tokens=self.tokens + other.tokens,
            passes=self.passes + other.passes,
            rounds=self.rounds + other.rounds,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            replayed=self.replayed + other.replayed,
        )


class Drafter(Protocol):
    """One n-gram method with its state."""

    def begin(self, prompt: Sequence[int]) -> None:
        """A request starts: its whole prompt has been read."""

    def draft(self, history: Sequence[int], last: int) -> list[int]:
        """Tokens expected after ``last``, the newest token, which is not part of ``history`` yet."""

    def accept(self, count: int) -> None:
        """``count`` tokens of the last (non-empty) draft were accepted."""


class NgramSimple:
    """``ngram-simple``: copies up to ``size_m`` tokens from the newest earlier place with the same ``size_n``."""

    def __init__(self, options: Options) -> None:
        self.n, self.m = options.size_n, options.size_m
        self._newest: dict[tuple[int, ...], int] = {}
        self._indexed = 1  # position 0 means "no match" in the original and is never found

    def begin(self, prompt: Sequence[int]) -> None:
        """The original has no state; the index that stands for its backward search starts anew."""
        self._newest.clear()
        self._indexed = 1

    def draft(self, history: Sequence[int], last: int) -> list[int]:
        """See :class:`Drafter`."""
        n, length = self.n, len(history)
        if length <= n + self.m + 1:
            return []
        for j in range(self._indexed, length - n):
            self._newest[tuple(history[j : j + n])] = j
        self._indexed = max(self._indexed, length - n)
        found = self._newest.get((*history[length - n + 1 :], last))
        if found is None:
            return []
        copied = list(history[found + n : found + n + self.m])
        return copied if len(copied) >= n else []

    def accept(self, count: int) -> None:
        """Nothing is learned."""


class _Value:
    """What once followed a key: where, how often, and how much of it was accepted last time."""

    def __init__(self, accepted: int) -> None:
        self.place, self.count, self.accepted = 0, 0, accepted


class _Key:
    """An n-gram that occurred again."""

    def __init__(self, place: int, size_m: int) -> None:
        self.place, self.counted, self.hits = place, 0, 0
        self.values = [_Value(size_m) for _ in range(4)]


class NgramMap:
    """``ngram-map-k`` (copies after the found key) and ``ngram-map-k4v`` (the most frequent of four continuations).

    Both remember how much of a key's last draft was accepted and never draft more than that after it again.
    """

    _HASHES = 262144
    _MOST = 16380

    def __init__(self, options: Options, key_only: bool) -> None:
        self.n, self.m, self.min_hits, self.key_only = options.size_n, options.size_m, options.min_hits, key_only
        self._hashed: dict[int, int] = {}
        self._hashed_to = 0
        self._keys: list[_Key] = []
        self._begun = 0
        self._checked = 0
        self._last: _Value | None = None

    def _hash(self, tokens: Sequence[int]) -> int:
        value = 0
        for token in tokens:
            value = (value * 2654435761 + token) & 0xFFFFFFFF
        return value % self._HASHES

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget what lies beyond a history that became shorter (reasoning removed, another chat)."""
        size = len(prompt)
        keep = self._begun
        if keep > size:
            keep = max(size - self.n - self.m, 0)
        if size < self._checked:
            self._hashed = {h: i for h, i in self._hashed.items() if i < keep}
            self._hashed_to = max(keep - 1, 0)
            self._keys = [key for key in self._keys if self._survives(key, keep)]
        self._checked = self._begun = size

    def _survives(self, key: _Key, keep: int) -> bool:
        if key.place >= keep:
            return False
        if self.key_only:
            return True
        for v in (3, 2, 1, 0):
            if key.values[v].place >= keep and key.values[v].place:
                # The original moves the later values down and clears the freed last one, except for its record.
                freed = _Value(key.values[3].accepted)
                key.values[v:] = [*key.values[v + 1 :], freed]
        return key.values[0].place != 0

    def draft(self, history: Sequence[int], last: int) -> list[int]:
        """See :class:`Drafter`."""
        self._last = None
        n, m, length = self.n, self.m, len(history)
        if length < 2 * n + m:
            return []
        self._checked = length
        pattern = [*history[length - n + 1 :], last]
        newest = length - n - m - 1
        found = self._find(history, pattern, newest)
        self._index(history, newest)
        if not found:
            return []
        key = next((k for k in self._keys if list(history[k.place : k.place + n]) == pattern), None)
        if key is None:
            key = _Key(found, m)
            self._keys.append(key)
        key.hits = min(key.hits + 1, self._MOST)
        if self.key_only:
            value = key.values[0]
        else:
            if key.hits < self.min_hits:
                return []
            self._count(history, pattern, key, found)
            value = max(key.values, key=lambda v: v.count)
            others = sum(v.count for v in key.values) - value.count
            if others > 0 and value.count < 2 * others:
                return []
        self._last = value
        return list(history[found + n : found + n + min(m, value.accepted)])

    def _find(self, history: Sequence[int], pattern: list[int], newest: int) -> int:
        n = self.n
        hashed = self._hashed.get(self._hash(pattern), 0)
        if hashed and hashed < newest and list(history[hashed : hashed + n]) == pattern:
            return hashed
        first = pattern[0]
        for j in self._unhashed(newest):
            if history[j] == first and list(history[j : j + n]) == pattern:
                return j
        return 0

    def _unhashed(self, newest: int) -> Iterable[int]:
        """Places not in the hash table yet, in the original's order: the prompt downwards, then what came after it."""
        if self._begun > self.n + self.m + 1:
            yield from range(self._begun - self.n - self.m - 1, self._hashed_to, -1)
        yield from range(newest, max(self._begun, self._hashed_to), -1)

    def _index(self, history: Sequence[int], newest: int) -> None:
        for j in self._unhashed(newest):
            self._hashed.setdefault(self._hash(history[j : j + self.n]), j)
        self._hashed_to = max(newest, self._hashed_to)

    def _count(self, history: Sequence[int], pattern: list[int], key: _Key, found: int) -> None:
        n, m, first = self.n, self.m, pattern[0]
        for i in range(key.counted, found + 1):
            if history[i] != first or list(history[i : i + n]) != pattern:
                continue
            after = i + n
            for value in key.values:
                if value.place == 0:
                    value.place, value.count, value.accepted = after, 1, m
                    break
                if history[after : after + m] == history[value.place : value.place + m]:
                    value.count = min(value.count + 1, self._MOST)
                    break
        key.counted = found

    def accept(self, count: int) -> None:
        """Remember how far the last draft was right."""
        if self._last is not None:
            self._last.accepted = count


class NgramMod:
    """``ngram-mod``: a table from the hash of ``match`` tokens to the one that followed last; drafts by walking it."""

    _SIZE = 4 * 1024 * 1024
    _FACTOR = 6364136223846793005 % _SIZE  # the original's 64-bit product is taken modulo the size, a power of two

    def __init__(self, options: Options) -> None:
        self.n, self.least, self.most = options.match, options.least, options.most
        self._table: dict[int, int] = {}
        self._added = 0
        self._drafted = 0
        self._poor = 0

    def _hash(self, tokens: Sequence[int]) -> int:
        value = 0
        for token in tokens:
            value = (value * self._FACTOR + token) % self._SIZE
        return value

    def _add(self, history: Sequence[int], start: int, end: int) -> None:
        for i in range(start, end):
            self._table[self._hash(history[i : i + self.n])] = history[i + self.n]

    def begin(self, prompt: Sequence[int]) -> None:
        """Learn the prompt; start over when a quarter of the table is in use."""
        self._added = self._drafted = 0
        if len(prompt) < self.n:
            return
        self._add(prompt, 0, len(prompt) - self.n)
        self._added = len(prompt) - self.n
        if len(self._table) > 0.25 * self._SIZE:
            self._table.clear()

    def draft(self, history: Sequence[int], last: int) -> list[int]:
        """See :class:`Drafter`."""
        self._drafted = 0
        n, length = self.n, len(history)
        if length < n:
            return []
        if self._added + 32 < length:
            self._add(history, self._added, length - n)
            self._added = length - n
        window = [*history[length - n + 1 :], last]
        for i in range(self.most):
            token = self._table.get(self._hash(window[i : i + n]))
            if token is None:
                if i < self.least:
                    return []
                break
            window.append(token)
        self._drafted = len(window) - n
        return window[n:]

    def accept(self, count: int) -> None:
        """Forget everything after five drafts in a row of which less than a quarter was accepted."""
        if not self._drafted:
            return
        if count / self._drafted >= 0.25:
            self._poor = 0
            return
        self._poor += 1
        if self._poor >= 5:
            self._table.clear()
            self._poor = self._added = 0


class NgramCache:
    """``ngram-cache``: counts of what followed each 1 to 4 tokens; drafts while one continuation is common enough.

    New tokens are counted in chunks without the context before them, as in the original: after the prompt it learns
    only from rounds that accepted something.
    """

    _LENGTH = 8
    _SIZES = (1, 2, 3, 4)
    _SAMPLES = (2, 2, 1, 1)
    _PERCENT = (66, 50, 50, 50)

    def __init__(self, options: Options) -> None:
        del options  # no option reaches this method
        self._after: dict[tuple[int, ...], dict[int, int]] = {}
        self._seen = 0

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing happens: the cache goes on where the last request ended."""

    def draft(self, history: Sequence[int], last: int) -> list[int]:
        """See :class:`Drafter`."""
        if self._seen < len(history) + 1:
            self._learn([*history[self._seen :], last])
            self._seen = len(history) + 1
        if not history:
            return []
        tail = [*history[-3:], last]
        out: list[int] = []
        while len(out) < self._LENGTH:
            token = self._next(tail)
            if token is None:
                break
            out.append(token)
            tail = [*tail[-3:], token]
        return out

    def _learn(self, chunk: list[int]) -> None:
        for size in self._SIZES:
            for i in range(size, len(chunk)):
                counts = self._after.setdefault(tuple(chunk[i - size : i]), {})
                counts[chunk[i]] = counts.get(chunk[i], 0) + 1

    def _next(self, tail: list[int]) -> int | None:
        for size in reversed(self._SIZES):
            if size > len(tail):
                continue
            counts = self._after.get(tuple(tail[-size:]))
            if counts is None:
                continue
            total, most = sum(counts.values()), max(counts.values())
            if total < self._SAMPLES[size - 1] or 100 * most < self._PERCENT[size - 1] * total:
                continue
            tied = [token for token, count in counts.items() if count == most]
            if len(tied) > 1:
                return next(token for token in _hash_order(list(counts)) if counts[token] == most)
            return tied[0]
        return None

    def accept(self, count: int) -> None:
        """Nothing is learned."""


_BUCKETS = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061)


def _hash_order(inserted: list[int]) -> list[int]:
    """Order in which libstdc++ walks an ``unordered_map<int, int>`` after these insertions.

    Ties between equally frequent tokens go to the first one met, so the order matters; other C++ libraries (macOS,
    Windows) may break such ties differently. A new node goes to the front of its bucket, or to the front of the list
    if the bucket was empty; growing re-inserts all nodes in list order by the same rule.
    """
    order: list[int] = []
    level = 0
    for count, token in enumerate(inserted, 1):
        if count > _BUCKETS[level]:
            level += 1
            walked, order = order, []
            for old in walked:
                _place(order, old, _BUCKETS[level])
        _place(order, token, _BUCKETS[level])
    return order


def _place(order: list[int], token: int, buckets: int) -> None:
    bucket = token % buckets
    at = next((i for i, other in enumerate(order) if other % buckets == bucket), None)
    order.insert(0 if at is None else at, token)


def drafter(method: Method, options: Options | None = None) -> Drafter:
    """A fresh drafter of an n-gram method.

    Raises:
        InputError: ``method`` is not an n-gram method.
    """
    options = options or Options()
    match method:
        case "ngram-simple":
            return NgramSimple(options)
        case "ngram-map-k" | "ngram-map-k4v":
            return NgramMap(options, key_only=method == "ngram-map-k")
        case "ngram-mod":
            return NgramMod(options)
        case "ngram-cache":
            return NgramCache(options)
    raise InputError(f"{method} is not an n-gram method.", f"Use one of {', '.join(METHODS)}.")


def replay(
    method: Method,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    options: Options | None = None,
    state: Drafter | None = None,
    limit: int | None = None,
    context: int | None = None,
    checkpoint: bool = False,
    stop_tokens: frozenset[int] = frozenset(),
) -> Replay:
    """Replay one request: what would have been drafted and accepted while ``output`` was generated.

    Args:
        method: an n-gram method.
        prompt: tokens of the whole prompt (system, history, template included).
        output: tokens the target generated after it, the end-of-text token included if there was one.
        options: n-gram options; ignored when ``state`` is given.
        state: drafter of an earlier request of the same slot, to go on with.
        limit: ``n_predict`` of the request; drafts are cut so that they cannot exceed it. None = no limit.
        context: context size of the slot [tokens]; drafts are cut to fit. None = large enough.
        checkpoint: the target is recurrent or hybrid: after a partial accept the kept tokens are decoded again,
            which costs a pass and yields one more token.
        stop_tokens: end-of-text tokens, which are accepted only as the last token of a draft.

    Raises:
        InputError: ``method`` is not an n-gram method.
    """
    one = state if state is not None else drafter(method, options)
    history = list(prompt)
    one.begin(history)
    passes = rounds = drafted = accepted = replayed = 0
    done = min(1, len(output))  # the first token comes from the prompt's own pass
    while done < len(output):
        room = [context - len(history) - 2] if context is not None else []
        if limit is not None and limit > done:
            room.append(limit - done - 1)
        most = min(room, default=None)
        last = output[done - 1]
        draft = one.draft(history, last)[:most] if most is None or most > 0 else []
        passes += 1
        history.append(last)
        if not draft:
            done += 1
            continue
        rounds += 1
        drafted += len(draft)
        kept = _kept(draft, output, done, stop_tokens)
        accepted += kept
        gained = kept + 1
        if checkpoint and kept < len(draft):
            one.accept(kept + 1)
            passes += 1
            replayed += 1
            gained += 1
        else:
            one.accept(kept)
        history.extend(output[done : done + gained - 1])
        done += gained
    return Replay(
        method=method,
        requests=1,
        tokens=len(output),
        passes=passes,
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        replayed=replayed,
    )


def _kept(draft: list[int], output: Sequence[int], done: int, stop_tokens: frozenset[int]) -> int:
    for i, token in enumerate(draft):
        if done + i >= len(output) or token != output[done + i]:
            return i
        if token in stop_tokens and i + 1 < len(draft):
            return i
    return len(draft)


def replay_requests(
    method: Method,
    requests: Iterable[tuple[Sequence[int], Sequence[int]]],
    *,
    options: Options | None = None,
    checkpoint: bool = False,
) -> Replay:
    """Replay (prompt, output) pairs one after another in one slot, so that later ones profit from earlier ones.

    Raises:
        InputError: ``method`` is not an n-gram method.
    """
    state = drafter(method, options)
    total = Replay(method=method, requests=0, tokens=0, passes=0, rounds=0, drafted=0, accepted=0)
    for prompt, output in requests:
        total = total + replay(method, prompt, output, state=state, checkpoint=checkpoint)
    return total
