"""`toc bench`: how fast toc is on the servers of the settings, and how late its jobs start.

    scratch_databases  databases and keys of its own       job_specs      the jobs that are scheduled
    scheduling         schedule_many, schedule             child_process  a process on a pipe
    cancelling         cancel                              child_node     a node in such a process
    draining           drain                               worker         the worker's process
    lateness           lateness                            statistics     percentiles, histograms
    run                one run from settings to report     report         table, histograms, JSON
    bottleneck         the part that is at its limit       processor_time  of all processes

`make bench` runs more cases, and measures the bare drivers beside toc (tests/bench).
"""
