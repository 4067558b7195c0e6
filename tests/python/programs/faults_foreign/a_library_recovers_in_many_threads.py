"""A library recovers in more threads than the chain of handlers has places."""

import threading

from recovering import f, library

recovered = []
for number in range(300):
    thread = threading.Thread(target=lambda: recovered.append(library.touch(0)))
    thread.start()
    thread.join()
print(recovered.count(1), f.read(8, 8)[0])
