import gc

objects = [[i] for i in range(200_000)]
while True:
    gc.collect()  # planted
