"""The long fault programme: nine classes of faults, each in chunks that can be run one at a time and resumed.

    python -m tests.fault_programme --only load --minutes 10

`parts` has the data, `catalogue` the classes, `progress` what has been run, `launch` and `child` the
process of one chunk, `report` the table. Each file in `classes` is one class of faults. ``make fault-programme`` runs all of it.
"""
