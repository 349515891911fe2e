import os
import threading
import time

parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.05)  # planted
    os._exit(0)
print("ready", flush=True)
os.wait()
