import ctypes
import sys

cuda = ctypes.CDLL(sys.argv[1])
while True:
    cuda.cuEventSynchronize(50)  # planted
