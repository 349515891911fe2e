import time

while True:
    total = sum(range(1000))
    time.sleep(0.02)  # planted
