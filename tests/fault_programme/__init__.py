"""The fault programme: ten classes of faults, each in chunks that run one at a time, in processes of their own.

    FAULT_SHARE=0.1 pytest tests/fault_programme/test_programme.py -k load

`parts` has the data, `catalogue` the classes, `launch` and `child` the process of one chunk, `conftest` the table. Each file in
`classes` is one class of faults. ``FAULT_SHARE=1`` runs all of it.
"""
