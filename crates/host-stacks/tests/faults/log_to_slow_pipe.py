import logging
import os
import threading
import time

reader, writer = os.pipe()


def drain():
    while True:
        os.read(reader, 4096)
        time.sleep(0.02)


threading.Thread(target=drain, daemon=True).start()
log = logging.getLogger("step")
log.setLevel(logging.INFO)
log.addHandler(logging.StreamHandler(os.fdopen(writer, "w")))
while True:
    log.info("x" * 4096)  # planted
