"""`toc bench`: what toc costs over the bare drivers that do the same work, measured in one run.

Absolute figures are worth little: the same machine gives half or double from one hour to the
next. So the floor (plain cursors and plain redis-py, on tables of the same schema, with the same
connection options and the same rows) and toc take turns, round by round, and the figure that counts
is the ratio within a round. Medians and extremes are of all rounds.

    scratch     databases and keys of its own      floor     the bare statements
    cases       the cases by name                  load      the jobs, for both sides
    scheduling  schedule_many, schedule            worker    the no-op worker's process
    running     drain, lateness                    report    table, histogram, JSON
    idling      an idle worker                     run       one run from settings to report
"""
