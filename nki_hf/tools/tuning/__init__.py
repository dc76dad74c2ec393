"""Tuning: one kernel with many values of its constants, timed on shapes alone."""
