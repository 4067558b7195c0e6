"""Eight threads import upstream's module during repeated `install` and `uninstall` calls."""

import importlib
import threading

import pagestream.safetensors as ours

errors = []
stop = threading.Event()


def work():
    try:
        while not stop.is_set():
            found = importlib.import_module("safetensors.numpy")
            assert found.__name__ in ("safetensors.numpy", "pagestream.safetensors.numpy")
    except BaseException as error:
        errors.append(repr(error))


threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
try:
    for _ in range(50):
        with ours.install():
            pass
finally:
    stop.set()
for thread in threads:
    thread.join()
print(errors)
