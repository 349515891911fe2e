import threading
import time

lock = threading.Lock()


def hold():
    while True:
        with lock:
            time.sleep(0.1)
        time.sleep(0.001)


threading.Thread(target=hold, daemon=True).start()
while True:
    with lock:  # planted
        total = sum(range(1000))
