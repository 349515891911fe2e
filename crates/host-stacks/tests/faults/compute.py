while True:
    total = sum(i * i for i in range(100_000))  # planted
