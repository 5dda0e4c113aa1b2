"""BARRIER: who waits for whom when a group synchronises, and the four steps and bytes that do it.

`strategies` has the peers by kind of machine, `table` the tables of a program, `merge` those of a device, `program` the
bytes, `guarantee` what a barrier promises.
"""
