import os

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
parent = os.getpid()
for _ in range(4):
    if os.fork() == 0:
        while os.getppid() == parent:
            sum(range(10_000))
        os._exit(0)
while True:
    total = sum(i * i for i in range(100_000))  # planted
