"""Times of jobs that run beside each other."""

import math
import time
from collections.abc import Callable, Mapping

Job = Callable[[], object]
Row = dict[str, float]


def best_times(jobs: Mapping[str, Job], seconds: float, rounds: int = 200) -> Row:
    """Return the best time of each job; rounds are interleaved and end when time is up."""
    best = dict.fromkeys(jobs, math.inf)
    stop = time.perf_counter() + seconds
    for round_ in range(rounds):
        for name, job in jobs.items():
            for _ in range(3):  # the first call after another contender finds cold caches
                start = time.perf_counter()
                job()
                elapsed = time.perf_counter() - start
                best[name] = min(best[name], elapsed)
                if elapsed > 0.1:  # longer than caches remember
                    break
        if round_ >= 2 and time.perf_counter() > stop:
            break
    return best
