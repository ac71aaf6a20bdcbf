"""For the tests of whoever uses toc: a clock that stands still.

clock = TestClock()
center = toc.TimeoutCenter(settings, clock=clock)
center.schedule(42, timedelta(minutes=30))
clock.advance(timedelta(minutes=30))     # now it is due, for MySQL and Redis too
"""

from toc.testing.clock import TestClock

__all__ = ["TestClock"]
