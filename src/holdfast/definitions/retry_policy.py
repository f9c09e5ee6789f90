"""The retry policy of a task: how often and how soon a failed attempt is retried."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from holdfast.definitions.validation import check_whole_number, parse_duration
from holdfast.errors import InvalidError


@dataclass(frozen=True, kw_only=True, init=False)
class RetryPolicy:
    """How often and how soon a failed attempt is retried.

    The delay before retry number n is `min(cap, base * 2 ** (n - 1))`, changed at random by up to `jitter`
    of its length. Exceptions in `never_for`, and those not in `retry_for`, are not retried.

    >>> from datetime import timedelta
    >>> from holdfast import RetryPolicy, task
    >>> @task(retry=RetryPolicy(retries=8, base=timedelta(seconds=1), never_for=(KeyError,)))
    ... def fetch(url: str) -> str:
    ...     return url
    """

    retries: int = 4
    base: timedelta = timedelta(seconds=5)
    cap: timedelta = timedelta(minutes=15)
    jitter: float = 0.2
    retry_for: tuple[type[BaseException], ...] = (Exception,)
    never_for: tuple[type[BaseException], ...] = ()

    def __init__(
        self,
        *,
        retries: int = 4,
        base: timedelta | float = timedelta(seconds=5),
        cap: timedelta | float = timedelta(minutes=15),
        jitter: float = 0.2,
        retry_for: tuple[type[BaseException], ...] = (Exception,),
        never_for: tuple[type[BaseException], ...] = (),
    ) -> None:
        check_whole_number(retries, "retries", minimum=0)
        pauses = {"base": parse_duration(base, "base"), "cap": parse_duration(cap, "cap")}
        rest = {"retries": retries, "jitter": jitter, "retry_for": retry_for, "never_for": never_for}
        for name, value in (pauses | rest).items():
            object.__setattr__(self, name, value)
        if self.base < timedelta(0) or self.cap < self.base:
            raise InvalidError(
                f"base must not be negative and cap must not be shorter than base, got base {self.base} and "
                f"cap {self.cap}.",
                field="base",
            )
        if not 0 <= self.jitter <= 1:
            raise InvalidError(f"jitter must be between 0 and 1, got {self.jitter}.", field="jitter")
