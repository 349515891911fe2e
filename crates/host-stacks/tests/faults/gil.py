import threading


def compute():
    while True:
        sum(i * i for i in range(100_000))


for _ in range(3):
    threading.Thread(target=compute, daemon=True).start()
while True:
    total = sum(i * i for i in range(100_000))  # planted
