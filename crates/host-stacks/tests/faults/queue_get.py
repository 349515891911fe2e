import queue
import threading
import time

requests = queue.Queue()


def produce():
    while True:
        time.sleep(0.05)
        requests.put(1)


threading.Thread(target=produce, daemon=True).start()
while True:
    request = requests.get()  # planted
