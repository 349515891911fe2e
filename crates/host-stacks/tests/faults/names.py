import threading
import time


def étape_日本():
    time.sleep(1000)  # planted


def deep(n):
    return deep(n - 1) if n else étape_日本()


threading.Thread(target=deep, args=(200,), daemon=True).start()
time.sleep(1000)
