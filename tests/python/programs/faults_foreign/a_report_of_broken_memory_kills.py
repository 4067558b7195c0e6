"""A report of broken memory that no thread has touched kills the process."""

from send import BUS_MCEERR_AO, send

send(BUS_MCEERR_AO)
print("alive")
