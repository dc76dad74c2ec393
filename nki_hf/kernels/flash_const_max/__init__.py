"""flash_const_max: attention of many queries with a constant softmax shift, certified afterwards.

`kernel.py` is the NKI source, `work.py` its order of work, `plan.py` turns a Problem into its constants, `tuning.py` holds
those that depend on the chip.
"""
