"""A page that keeps faulting is replaced in the end. Each mapping counts its own attempts."""

from signals import ADDRESS_ERROR, send
from view import opened, use

f, array = opened()


def fault():
    for _ in range((1 << 16) + 1):
        send(ADDRESS_ERROR, array.ctypes.data + 8192)


error = use(fault)
assert error.offset == 8192 and array[1024] == 0 and array[1023] == 1023
del array
f.close()
f, array = opened()
send(ADDRESS_ERROR, array.ctypes.data + 8192)
f.check()
print(array[1024])
