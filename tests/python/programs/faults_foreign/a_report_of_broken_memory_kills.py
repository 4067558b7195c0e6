"""A report of broken memory that nobody touched kills."""

from send import BUS_MCEERR_AO, send

send(BUS_MCEERR_AO)
print("alive")
